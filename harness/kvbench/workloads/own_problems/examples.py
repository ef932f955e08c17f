"""The few-shot examples: other templates than those of the questions."""

from __future__ import annotations

from typing import Final

from kvbench.workloads.own_problems.draw import Draw
from kvbench.workloads.own_problems.working import Problem, Working


def _candles_burning(draw: Draw) -> Problem:
    who, candles, tall = draw.person(), draw.number(3, 6), draw.number(18, 30)
    rate, hours = draw.number(2, 3), draw.number(3, 5)
    work = Working()
    gone = work.step("Each candle loses @ centimeters.", f"{rate}*{hours}")
    left = work.step("Each candle is then @ centimeters tall.", f"{tall}-{gone}")
    work.step("On top of each other they would be @ centimeters tall.", f"{left}*{candles}")
    return work.problem(
        f"{who} lights {candles} candles, all {tall} centimeters tall. They shrink by {rate} "
        f"centimeters an hour. If the stumps were stacked after {hours} hours, how tall would the "
        "stack be?"
    )


def _mushroom_baskets(draw: Draw) -> Problem:
    who, other = draw.people(2)
    mine, times, bad = draw.number(14, 30), draw.number(2, 4), draw.number(4, 9)
    work = Working()
    second = work.step(f"{other} finds @ mushrooms.", f"{times}*{mine}")
    both = work.step("Both find @ mushrooms.", f"{mine}+{second}")
    work.step("Fit to eat are @ mushrooms.", f"{both}-{bad}")
    times_words = {2: "two", 3: "three", 4: "four"}[times]
    return work.problem(
        f"In the pine wood {who} finds {mine} mushrooms, and {other} finds {times_words} times "
        f"that number. A forester sorts out {bad} inedible ones. How many mushrooms can they fry?"
    )


def _choir_rows(draw: Draw) -> Problem:
    rows, each, absent = draw.number(5, 9), draw.number(8, 14), draw.number(3, 8)
    guests = draw.number(6, 15)
    work = Working()
    choir = work.step("The full choir has @ singers.", f"{rows}*{each}")
    present = work.step("Present are @ of them.", f"{choir}-{absent}")
    work.step("With the guests @ people sing.", f"{present}+{guests}")
    return work.problem(
        f"A choir normally stands in {rows} rows of {each}. Tonight {absent} singers have a cold, "
        f"but {guests} guests from the neighboring village join in. How many voices are heard?"
    )


def _paint_walls(draw: Draw) -> Problem:
    who, walls, area = draw.person(), draw.number(3, 5), draw.number(12, 20, 2)
    coats, cover = 2, draw.pick([6, 8])
    while walls * area * coats % cover:
        area += 1
    work = Working()
    once = work.step("All walls together are @ square meters.", f"{walls}*{area}")
    twice = work.step("Two coats cover @ square meters.", f"{coats}*{once}")
    work.step("That takes @ liters of paint.", f"{twice}/{cover}")
    return work.problem(
        f"{who} gives {walls} walls of {area} square meters each two coats of paint. A liter is "
        f"enough for {cover} square meters. How many liters does the job take?"
    )


def _stamp_album(draw: Draw) -> Problem:
    who, pages, each = draw.person(), draw.number(12, 20, 2), draw.number(9, 15)
    swapped, got = draw.number(10, 20), draw.number(21, 35)
    work = Working()
    stamps = work.step("The album holds @ stamps.", f"{pages}*{each}")
    after = work.step("After giving some away it holds @ stamps.", f"{stamps}-{swapped}")
    work.step("In the end it holds @ stamps.", f"{after}+{got}")
    return work.problem(
        f"The stamp album that {who} inherited has {pages} pages with {each} stamps on each. At a "
        f"fair {who.they} gives {swapped} stamps away and receives {got} in return. How many "
        "stamps does the album hold now?"
    )


def _dog_food_weeks(draw: Draw) -> Problem:
    shelter = draw.pick(["Kestrel Lane", "Old Mill", "Harbor Road"])
    dogs, grams, days = draw.number(4, 9), draw.number(250, 450, 50), 7
    bags = 1000
    work = Working()
    daily = work.step("A day takes @ grams.", f"{dogs}*{grams}")
    weekly = work.step("A week takes @ grams.", f"{daily}*{days}")
    order = (weekly // bags + 2) * bags
    work.step("At the end of the week @ grams are left.", f"{order}-{weekly}")
    return work.problem(
        f"The {shelter} shelter feeds {dogs} dogs, {grams} grams a day to each. On Monday morning "
        f"the bin is filled up to {order} grams. How many grams are in it after seven days of "
        "feeding?"
    )


def _museum_guides(draw: Draw) -> Problem:
    guides, group, tours = draw.number(3, 6), draw.number(12, 20), draw.number(3, 5)
    price = draw.number(4, 8)
    work = Working()
    round_ = work.step("At a time @ visitors are led around.", f"{guides}*{group}")
    day = work.step("In a day @ visitors are led around.", f"{round_}*{tours}")
    work.step("The tours bring $@.", f"{day}*{price}")
    return work.problem(
        f"{guides} guides at the salt museum each lead {tours} tours a day with {group} visitors. "
        f"A tour costs ${price} a head, and every tour is full. What do a day's tours bring in?"
    )


def _rope_pieces(draw: Draw) -> Problem:
    who, piece, count = draw.person(), draw.number(3, 7), draw.number(6, 12)
    rest, knot = 2, draw.number(8, 14)
    total = piece * count + rest + knot
    work = Working()
    usable = work.step("After the frayed end is cut, @ meters remain.", f"{total}-{knot}")
    even = work.step("Without the leftover @ meters are used.", f"{usable}-{rest}")
    work.step("That gives @ leashes.", f"{even}/{piece}")
    return work.problem(
        f"A rope is {total} meters long, but {knot} meters of it are frayed and cut off. {who} "
        f"makes leashes of {piece} meters from the good part and has {rest} meters over. How many "
        "leashes are made?"
    )


def _theater_rows(draw: Draw) -> Problem:
    front, back = draw.number(8, 12), draw.number(10, 16)
    wide, narrow = draw.number(20, 26), draw.number(14, 18)
    sold = draw.number(120, 250)
    work = Working()
    one = work.step("Downstairs are @ seats.", f"{back}*{wide}")
    two = work.step("On the balcony are @ seats.", f"{front}*{narrow}")
    all_seats = work.step("The house has @ seats.", f"{one}+{two}")
    work.step("Still free are @ seats.", f"{all_seats}-{sold}")
    return work.problem(
        f"Downstairs the theater has {back} rows of {wide} seats, on its balcony {front} rows of "
        f"{narrow}. For the premiere {sold} seats have been sold. How many can still be had?"
    )


def _plant_growth(draw: Draw) -> Problem:
    who, plant = draw.person(), draw.pick(["sunflower", "hop vine", "bean stalk"])
    start, rate, weeks = draw.number(10, 25), draw.number(6, 12), draw.number(4, 9)
    cut = draw.number(5, 9)
    work = Working()
    grown = work.step("It grows by @ centimeters.", f"{rate}*{weeks}")
    tall = work.step("Then it is @ centimeters tall.", f"{start}+{grown}")
    work.step("After the cut it is @ centimeters tall.", f"{tall}-{cut}")
    return work.problem(
        f"When {who} plants out a {plant}, it is {start} centimeters tall. It gains {rate} "
        f"centimeters a week for {weeks} weeks, and then a snail bites off the top {cut}. How "
        "many centimeters tall is it now?"
    )


def _shared_taxi(draw: Draw) -> Problem:
    base, per, km = draw.number(3, 6), draw.number(2, 3), draw.number(9, 20)
    people = draw.pick([2, 3, 4])
    base += -(base + per * km) % people
    work = Working()
    drive = work.step("The distance costs $@.", f"{km}*{per}")
    fare = work.step("With the basic charge it is $@.", f"{drive}+{base}")
    work.step("Each passenger pays $@.", f"{fare}/{people}")
    return work.problem(
        f"A taxi charges ${base} to begin with and ${per} for each kilometer. {people} musicians "
        f"ride {km} kilometers to a concert and share the fare fairly. What is each one's part, "
        "in dollars?"
    )


def _puzzle_evenings(draw: Draw) -> Problem:
    who, first, more = draw.person(), draw.number(60, 110, 10), draw.number(10, 30, 5)
    left = draw.number(100, 250, 10)
    total = 3 * first + 3 * more + left
    work = Working()
    second = work.step("The second evening adds @ pieces.", f"{first}+{more}")
    third = work.step("The third evening adds @ pieces.", f"{second}+{more}")
    done = work.step("After three evenings @ pieces lie in place.", f"{first}+{second}+{third}")
    work.step("To do are @ pieces.", f"{total}-{done}")
    return work.problem(
        f"{who} works on a jigsaw of {total} pieces: {first} on the first evening, and on each of "
        f"the next two evenings {more} more than the evening before. How many pieces are still in "
        "the lid?"
    )


def _bean_sacks(draw: Draw) -> Problem:
    sacks, kilos, percent = draw.number(10, 30), draw.number(20, 60, 20), draw.pick([15, 20, 25])
    work = Working()
    green = work.step("The green beans weigh @ kilograms.", f"{sacks}*{kilos}")
    lost = work.step("Roasting drives off @ kilograms.", f"{green}*{percent}/100")
    work.step("The roasted beans weigh @ kilograms.", f"{green}-{lost}")
    return work.problem(
        f"Coffee loses {percent}% of its weight in the roaster. A roastery empties {sacks} sacks "
        f"of {kilos} kilograms into it. How many kilograms of roasted coffee come out?"
    )


def _chess_points(draw: Draw) -> Problem:
    who, wins, draws = draw.person(), draw.number(4, 9), draw.number(2, 6)
    for_win, for_draw, leader = 3, 1, draw.number(2, 7)
    work = Working()
    won = work.step("The wins give @ points.", f"{wins}*{for_win}")
    points = work.step("With the draws that is @ points.", f"{won}+{draws}*{for_draw}")
    work.step("The winner has @ points.", f"{points}+{leader}")
    return work.problem(
        f"In a league a win counts {for_win} points, a draw {for_draw} and a loss nothing. {who} "
        f"ends with {wins} wins and {draws} draws, {leader} points behind the champion. How many "
        "points has the champion?"
    )


TEMPLATES: Final = (
    _candles_burning,
    _mushroom_baskets,
    _choir_rows,
    _paint_walls,
    _stamp_album,
    _dog_food_weeks,
    _museum_guides,
    _rope_pieces,
    _theater_rows,
    _plant_growth,
    _shared_taxi,
    _puzzle_evenings,
    _bean_sacks,
    _chess_points,
)
