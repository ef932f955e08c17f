"""Questions about gardens, kitchens, animals and things that are made or shared."""

from __future__ import annotations

from typing import Final

from kvbench.workloads.own_problems.draw import Draw
from kvbench.workloads.own_problems.working import Problem, Working


def _roses_in_bunches(draw: Draw) -> Problem:
    who, bushes = draw.person(), draw.number(9, 18)
    blooms, bunch = draw.number(8, 14), draw.pick([5, 7, 9])
    frosted = bushes * blooms % bunch + bunch
    work = Working()
    cut = work.step("The bushes carry @ roses.", f"{bushes}*{blooms}")
    good = work.step("The frost has spared @ roses.", f"{cut}-{frosted}")
    work.step("They make @ bunches.", f"{good}/{bunch}")
    return work.problem(
        f"{bushes} rose bushes stand in {who}'s nursery with {blooms} blooms on each. After a cold "
        f"night {frosted} blooms have brown edges and stay on the bush; {who.they} cuts all the "
        f"others and ties them in bunches of {bunch}. How many bunches are there?"
    )


def _fence_with_a_gate(draw: Draw) -> Problem:
    who = draw.person()
    length, width, gate = draw.number(14, 30), draw.number(8, 13), draw.number(2, 4)
    price = draw.number(5, 9)
    work = Working()
    half = work.step("One long and one short side are @ meters.", f"{length}+{width}")
    around = work.step("All four sides are @ meters.", f"2*{half}")
    wire = work.step("Without the gate @ meters need wire.", f"{around}-{gate}")
    work.step("The wire costs $@.", f"{wire}*{price}")
    return work.problem(
        f"{who} wants wire around a rectangular goat pen, {length} meters long and {width} meters "
        f"wide, except where the gate of {gate} meters stands. Wire costs ${price} a meter. How "
        "much does the wire cost?"
    )


def _recipe_for_more(draw: Draw) -> Problem:
    who, dish = draw.person(), draw.pick(["lentil stew", "barley soup", "noodle bake"])
    serves, times = draw.number(3, 6), draw.number(3, 6)
    grams, have = draw.number(150, 400, 50), draw.number(100, 300, 50)
    work = Working()
    factor = work.step("The recipe is needed @ times.", f"{serves * times}/{serves}")
    need = work.step("That takes @ grams.", f"{factor}*{grams}")
    work.step(f"{who} has to buy @ grams.", f"{need}-{have}")
    return work.problem(
        f"A {dish} for {serves} people takes {grams} grams of the main ingredient. {who} cooks "
        f"for {serves * times} guests and finds {have} grams in the cupboard. How many more grams "
        f"must {who.they} buy?"
    )


def _floor_tiles(draw: Draw) -> Problem:
    room = draw.pick(["hallway", "wash house", "veranda"])
    long, wide, per = draw.number(4, 9), draw.number(2, 5), draw.pick([4, 9, 16])
    spare, box = draw.number(5, 15), 10
    spare += -(long * wide * per + spare) % box
    work = Working()
    area = work.step("The floor has @ square meters.", f"{long}*{wide}")
    tiles = work.step("It takes @ tiles.", f"{area}*{per}")
    total = work.step("With the spare ones that is @ tiles.", f"{tiles}+{spare}")
    work.step("They come in @ boxes.", f"{total}/{box}")
    return work.problem(
        f"The {room} measures {long} by {wide} meters, and {per} tiles cover a square meter. The "
        f"tiler wants {spare} spare tiles as well. If a box holds {box} tiles, how many boxes are "
        "ordered?"
    )


def _half_then_a_few(draw: Draw) -> Problem:
    who, friend = draw.people(2)
    things = draw.pick(["walnuts", "sea shells", "bottle caps"])
    start, few = draw.number(48, 120, 4), draw.number(5, 11)
    work = Working()
    half = work.step(f"{friend} gets @ {things}.", f"{start}/2")
    kept = work.step(f"{who} keeps @ {things}.", f"{start}-{half}")
    work.step(f"After the hole in the bag there are @ {things}.", f"{kept}-{few}")
    return work.problem(
        f"On the beach walk {who} fills a bag with {start} {things} and gives half of them to "
        f"{friend}. Then {few} slip through a hole in the bag. How many {things} does {who} bring "
        "home?"
    )


def _bookshelf_loads(draw: Draw) -> Problem:
    who = draw.person()
    shelves, each, lent = draw.number(4, 8), draw.number(18, 30), draw.number(9, 20)
    boxes = draw.pick([3, 4, 5])
    lent += (shelves * each - lent) % boxes
    work = Working()
    books = work.step("The shelves hold @ books.", f"{shelves}*{each}")
    here = work.step("At home are @ books.", f"{books}-{lent}")
    work.step("Each box gets @ books.", f"{here}/{boxes}")
    return work.problem(
        f"{who} is moving house. {shelves} shelves would hold {each} books each if they were "
        f"full, and they are, but for {lent} books lent to neighbors. The books go into {boxes} "
        "boxes in equal numbers. How many books lie in one box?"
    )


def _tank_filling(draw: Draw) -> Problem:
    use = draw.pick(["fish tank", "rain barrel", "brewing kettle"])
    rate, leak, minutes = draw.number(9, 16), draw.number(2, 4), draw.number(12, 30)
    start = draw.number(20, 60, 10)
    work = Working()
    net = work.step("Every minute the level gains @ liters.", f"{rate}-{leak}")
    gained = work.step(f"In {minutes} minutes that is @ liters.", f"{net}*{minutes}")
    work.step("The vessel then holds @ liters.", f"{start}+{gained}")
    return work.problem(
        f"A hose pours {rate} liters a minute into a {use} while a leaky valve lets {leak} liters "
        f"a minute out. At noon it held {start} liters. What does it hold {minutes} minutes later?"
    )


def _knitting_wool(draw: Draw) -> Problem:
    who = draw.person()
    scarves, per = draw.number(3, 7), draw.number(2, 4)
    hats, ball = draw.number(4, 9), draw.number(40, 60, 10)
    work = Working()
    first = work.step("The scarves take @ balls.", f"{scarves}*{per}")
    all_balls = work.step("With one ball for each hat that is @ balls.", f"{first}+{hats}")
    work.step("They weigh @ grams.", f"{all_balls}*{ball}")
    return work.problem(
        f"For the winter fair {who} knits {scarves} scarves, {per} balls of wool in each, and "
        f"{hats} hats, a single ball in each. One ball weighs {ball} grams. How many grams of "
        "wool are knitted?"
    )


def _ages_in_years(draw: Draw) -> Problem:
    young, middle, old = draw.people(3)
    age, more, later = draw.number(6, 12), draw.number(3, 8), draw.number(2, 6)
    work = Working()
    second = work.step(f"{middle} is @ years old.", f"{age}+{more}")
    third = work.step(f"{old} is @ years old.", f"2*{second}")
    now = work.step("Together they are @ years old.", f"{age}+{second}+{third}")
    work.step(f"In {later} years they are @ years old together.", f"{now}+3*{later}")
    return work.problem(
        f"{young} is {age}. {middle} is {more} years older than {young}, and {old} is twice as "
        f"old as {middle}. What will the sum of the three ages be {later} years from now?"
    )


def _beehive_honey(draw: Draw) -> Problem:
    who, hives, each = draw.person(), draw.number(5, 12), draw.number(12, 24, 3)
    share = 3
    jar = draw.pick([2, 4])
    while hives * each * 2 // 3 % jar:
        hives += 1
    work = Working()
    honey = work.step("The hives give @ pounds.", f"{hives}*{each}")
    bees = work.step("The bees keep @ pounds.", f"{honey}/{share}")
    taken = work.step("The beekeeper takes @ pounds.", f"{honey}-{bees}")
    work.step("That fills @ jars.", f"{taken}/{jar}")
    return work.problem(
        f"{who} looks after {hives} hives with {each} pounds of honey in each. A third of all the "
        f"honey stays with the bees. The remainder goes into {jar}-pound jars. How many jars does "
        f"{who.they} fill?"
    )


TEMPLATES: Final = (
    _roses_in_bunches,
    _fence_with_a_gate,
    _recipe_for_more,
    _floor_tiles,
    _half_then_a_few,
    _bookshelf_loads,
    _tank_filling,
    _knitting_wool,
    _ages_in_years,
    _beehive_honey,
)
