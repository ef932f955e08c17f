"""Questions about journeys, sport, time and machines."""

from __future__ import annotations

from typing import Final

from kvbench.workloads.own_problems.draw import Draw
from kvbench.workloads.own_problems.working import Problem, Working


def _bus_stops(draw: Draw) -> Problem:
    place = draw.pick(["harbor", "observatory", "spa"])
    start, on, off = draw.number(14, 26), draw.number(6, 12), draw.number(3, 9)
    fare = draw.number(2, 4)
    work = Working()
    paid = work.step("Whether they get off or not, @ people have paid.", f"{start}+{on}")
    work.step("In the box are $@.", f"{paid}*{fare}")
    return work.problem(
        f"A bus leaves the depot for the {place} with {start} riders. {on} more get on at the "
        f"first stop and {off} get off at the second; nobody else does. Every rider has paid "
        f"${fare}. How many dollars are in the fare box at the terminus?"
    )


def _cycling_days(draw: Draw) -> Problem:
    who = draw.person()
    hours, speed = draw.number(3, 6), draw.number(12, 18)
    second, rest = draw.number(35, 60), draw.number(20, 70)
    total = hours * speed + second + rest
    work = Working()
    first = work.step("The first day covers @ kilometers.", f"{hours}*{speed}")
    both = work.step("Both days cover @ kilometers.", f"{first}+{second}")
    work.step("To the sea are left @ kilometers.", f"{total}-{both}")
    return work.problem(
        f"From {who}'s door to the sea it is {total} kilometers. On Monday {who.they} cycles "
        f"{hours} hours at {speed} kilometers an hour, on Tuesday another {second} kilometers. "
        "How far is it still on Wednesday morning?"
    )


def _swimming_laps(draw: Draw) -> Problem:
    who, pool = draw.person(), draw.pick([25, 50])
    laps, days, more = draw.number(16, 30, 2), draw.number(3, 5), draw.number(4, 10, 2)
    work = Working()
    first = work.step("A weekday has @ meters.", f"{laps}*{pool}")
    week = work.step(f"{days} weekdays have @ meters.", f"{days}*{first}")
    longer = work.step("Sunday has @ lengths.", f"{laps}+{more}")
    sunday = work.step("Sunday has @ meters.", f"{longer}*{pool}")
    work.step("The week has @ meters.", f"{week}+{sunday}")
    return work.problem(
        f"Training plan: {laps} lengths of the {pool}-meter pool on each of {days} weekdays, and "
        f"{more} lengths more than that on Sunday. How many meters does {who} swim in a week by "
        "this plan?"
    )


def _train_carriages(draw: Draw) -> Problem:
    cars, rows, seats = draw.number(5, 9), draw.number(14, 20), 4
    free = draw.number(20, 60)
    first = draw.number(15, 40)
    work = Working()
    each = work.step("A carriage has @ seats.", f"{rows}*{seats}")
    total = work.step("The train has @ seats.", f"{cars}*{each}")
    taken = work.step("Taken are @ seats.", f"{total}-{free}")
    work.step("Once the others have left, @ passengers sit there.", f"{taken}-{first}")
    return work.problem(
        f"A night train pulls {cars} carriages, each with {rows} rows of {seats} seats. {free} "
        f"seats stay empty. At the border {first} passengers leave and nobody boards. How many "
        "passengers travel on?"
    )


def _average_of_scores(draw: Draw) -> Problem:
    who, sport = draw.person(), draw.pick(["archery", "diving", "ski jumping"])
    a, b, c = (draw.number(60, 95) for _ in range(3))
    c += -(a + b + c) % 3
    bar = (a + b + c) // 3 + draw.number(3, 9)
    work = Working()
    total = work.step("The three scores make @ points.", f"{a}+{b}+{c}")
    mean = work.step("On average that is @ points.", f"{total}/3")
    work.step("To the record are missing @ points.", f"{bar}-{mean}")
    return work.problem(
        f"In {sport}, {who} scores {a}, {b} and {c} points. The club's best average over three "
        f"rounds is {bar}. By how many points does {who}'s average miss it?"
    )


def _typing_pages(draw: Draw) -> Problem:
    who, pages, words = draw.person(), draw.number(6, 15), draw.number(240, 360, 40)
    speed = draw.pick([40, 60, 80])
    pages *= 2
    while pages * words % speed:
        pages += 1
    pause = draw.number(5, 15)
    work = Working()
    total = work.step("The report has @ words.", f"{pages}*{words}")
    minutes = work.step("Typing them takes @ minutes.", f"{total}/{speed}")
    work.step("With the pause it takes @ minutes.", f"{minutes}+{pause}")
    return work.problem(
        f"A report of {pages} pages, {words} words on each, is to be typed anew. {who} types "
        f"{speed} words a minute and takes one pause of {pause} minutes. After how many minutes "
        "is all done?"
    )


def _phone_battery(draw: Draw) -> Problem:
    who, film, call = draw.person(), draw.number(8, 14), draw.number(5, 9)
    hours, calls = draw.number(2, 4), draw.number(2, 4)
    work = Working()
    one = work.step("Films use @ percent.", f"{hours}*{film}")
    two = work.step("Calls use @ percent.", f"{calls}*{call}")
    used = work.step("In all @ percent are used.", f"{one}+{two}")
    work.step("Left are @ percent.", f"100-{used}")
    return work.problem(
        f"An hour of film drains {film} percent of {who}'s battery and an hour of calls {call} "
        f"percent. Starting full, {who.they} watches {hours} hours of film and calls for {calls} "
        "hours. What percentage is left in the battery?"
    )


def _two_machines(draw: Draw) -> Problem:
    part = draw.pick(["springs", "cogs", "washers"])
    slow, faster, hours = draw.number(30, 60, 5), draw.number(2, 3), draw.number(5, 8)
    reject = draw.number(11, 29)
    work = Working()
    fast = work.step(f"The new machine makes @ {part} an hour.", f"{faster}*{slow}")
    both = work.step(f"Both make @ {part} an hour.", f"{slow}+{fast}")
    shift = work.step(f"In the shift they make @ {part}.", f"{both}*{hours}")
    work.step(f"Good are @ {part}.", f"{shift}-{reject}")
    times = {2: "twice", 3: "three times"}[faster]
    return work.problem(
        f"The old machine stamps {slow} {part} an hour and the new one {times} as many. They run "
        f"side by side for a shift of {hours} hours, and inspection throws out {reject} pieces. "
        f"How many good {part} does the shift deliver?"
    )


def _camp_tents(draw: Draw) -> Problem:
    scouts, leaders, tent = draw.number(40, 70), draw.number(6, 10), draw.pick([4, 5, 6])
    scouts += -(scouts + leaders) % tent
    have = draw.number(3, 6)
    rent = draw.number(7, 12)
    work = Working()
    people = work.step("The camp has @ people.", f"{scouts}+{leaders}")
    tents = work.step("They need @ tents.", f"{people}/{tent}")
    hired = work.step("They hire @ tents.", f"{tents}-{have}")
    work.step("The hire costs $@.", f"{hired}*{rent}")
    return work.problem(
        f"{scouts} scouts and {leaders} leaders camp by the lake, {tent} to a tent, with no place "
        f"left over. The troop owns {have} tents and hires the missing ones for ${rent} each. "
        "What is the cost of hiring?"
    )


def _road_trip_fuel(draw: Draw) -> Problem:
    who, per, liters = draw.person(), draw.number(12, 18), draw.number(20, 40, 5)
    price, toll = draw.number(2, 3), draw.number(6, 14)
    distance = per * liters
    work = Working()
    need = work.step("The trip takes @ liters.", f"{distance}/{per}")
    fuel = work.step("The fuel costs $@.", f"{need}*{price}")
    there = work.step("One way costs $@.", f"{fuel}+{toll}")
    work.step("There and back cost $@.", f"2*{there}")
    return work.problem(
        f"{who}'s van runs {per} kilometers on a liter. The mountain hut is {distance} kilometers "
        f"away; a liter costs ${price} and the tunnel takes a toll of ${toll} each way. What do "
        "fuel and tolls cost for the drive there and back?"
    )


TEMPLATES: Final = (
    _bus_stops,
    _cycling_days,
    _swimming_laps,
    _train_carriages,
    _average_of_scores,
    _typing_pages,
    _phone_battery,
    _two_machines,
    _camp_tents,
    _road_trip_fuel,
)
