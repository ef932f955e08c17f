"""Questions about shops, markets, tickets and money."""

from __future__ import annotations

from typing import Final

from kvbench.workloads.own_problems.draw import Draw
from kvbench.workloads.own_problems.working import Problem, Working


def _bakery_trays(draw: Draw) -> Problem:
    who, goods = draw.person(), draw.pick(["seed rolls", "pretzels", "plum tarts"])
    trays, each = draw.number(6, 14), draw.number(9, 24)
    burnt, price = draw.number(2, 7), draw.number(2, 4)
    work = Working()
    baked = work.step(f"{trays} trays hold @ {goods}.", f"{trays}*{each}")
    good = work.step(f"Without the burnt ones @ {goods} are left.", f"{baked}-{burnt}")
    work.step("They bring in $@.", f"{good}*{price}")
    return work.problem(
        f"At the bakery, {who} pushes {trays} trays with {each} {goods} each into the oven. "
        f"{burnt} {goods} burn and go to the birds. All the rest is sold at ${price} apiece. How "
        "many dollars does the batch bring in?"
    )


def _market_two_sorts(draw: Draw) -> Problem:
    who = draw.person()
    first, second = draw.pick([("pears", "quinces"), ("leeks", "pumpkins"), ("figs", "melons")])
    n, p = draw.number(15, 45), draw.number(2, 3)
    m, q = draw.number(8, 20), draw.number(4, 7)
    rent = draw.number(12, 28)
    work = Working()
    one = work.step(f"The {first} bring $@.", f"{n}*{p}")
    two = work.step(f"The {second} bring $@.", f"{m}*{q}")
    both = work.step("Together that is $@.", f"{one}+{two}")
    work.step("After the rent of the stall $@ remain.", f"{both}-{rent}")
    return work.problem(
        f"{who} has a stall on Saturdays. Today {n} {first} went for ${p} each and {m} {second} "
        f"for ${q} each. The town takes ${rent} for the stall. What remains of the day's takings, "
        "in dollars?"
    )


def _cinema_groups(draw: Draw) -> Problem:
    adults, children = draw.number(3, 8), draw.number(9, 21)
    full = draw.number(8, 14, 2)
    work = Working()
    half = work.step("A child's seat costs $@.", f"{full}/2")
    big = work.step("The adults' seats cost $@.", f"{adults}*{full}")
    small = work.step("The children's seats cost $@.", f"{children}*{half}")
    work.step("The group pays $@.", f"{big}+{small}")
    return work.problem(
        f"A seat in the village cinema costs ${full}, and children pay half of that. A birthday "
        f"party of {adults} adults and {children} children fills the front rows. How much does "
        "the whole party pay at the till?"
    )


def _saving_for_a_thing(draw: Draw) -> Problem:
    who, thing = draw.person(), draw.pick(["accordion", "telescope", "kayak", "potter's wheel"])
    weekly, weeks, gift = draw.number(6, 15), draw.number(8, 16), draw.number(20, 60, 5)
    missing = draw.number(10, 90)
    price = weekly * weeks + gift + missing
    work = Working()
    saved = work.step(f"In {weeks} weeks {who} puts aside $@.", f"{weekly}*{weeks}")
    have = work.step(f"With the gift {who.they} has $@.", f"{saved}+{gift}")
    work.step(f"So {who.they} still lacks $@.", f"{price}-{have}")
    return work.problem(
        f"{who} dreams of a second-hand {thing} that costs ${price}. Each week {who.they} puts "
        f"${weekly} into a jar, and an aunt once added ${gift}. After {weeks} weeks, how many "
        f"dollars are still missing for the {thing}?"
    )


def _discount_in_percent(draw: Draw) -> Problem:
    who, goods = draw.person(), draw.pick(["lamps", "stools", "rucksacks"])
    price, count = draw.number(20, 80, 20), draw.number(3, 7)
    percent = draw.pick([10, 15, 20, 25, 30])
    work = Working()
    full = work.step(f"At the full price the {goods} cost $@.", f"{price}*{count}")
    off = work.step(f"{percent} percent of that is $@.", f"{full}*{percent}/100")
    work.step(f"{who} pays $@.", f"{full}-{off}")
    return work.problem(
        f"In the closing sale everything is {percent}% cheaper. {who} carries {count} {goods}, "
        f"marked ${price} each, to the desk. What is the bill after the reduction?"
    )


def _change_from_a_note(draw: Draw) -> Problem:
    who = draw.person()
    loaves, bread = draw.number(2, 4), draw.number(3, 5)
    jars, jam = draw.number(2, 5), draw.number(4, 6)
    work = Working()
    first = work.step("The bread comes to $@.", f"{loaves}*{bread}")
    second = work.step("The jam comes to $@.", f"{jars}*{jam}")
    total = work.step("Both come to $@.", f"{first}+{second}")
    work.step(f"{who} gets back $@.", f"100-{total}")
    return work.problem(
        f"With a single $100 note in {who.their} pocket, {who} buys {loaves} loaves at ${bread} "
        f"and {jars} jars of jam at ${jam}. How much change should the shopkeeper hand over?"
    )


def _printing_flyers(draw: Draw) -> Problem:
    club = draw.pick(["chess", "rowing", "juggling", "astronomy"])
    hundreds, rate, setup = draw.number(4, 12), draw.number(3, 7), draw.number(15, 40, 5)
    members = draw.pick([2, 3, 4, 6])
    total = hundreds * rate + setup
    setup += -total % members
    work = Working()
    packs = work.step("That is @ packs of a hundred.", f"{hundreds * 100}/100")
    paper = work.step("The packs cost $@.", f"{packs}*{rate}")
    bill = work.step("With the fee for the plate the bill is $@.", f"{paper}+{setup}")
    work.step("Each of them pays $@.", f"{bill}/{members}")
    return work.problem(
        f"The {club} club orders {hundreds * 100} flyers. The printer asks ${rate} for every "
        f"hundred and a fixed ${setup} for the plate. {members} board members split the bill "
        "evenly. How many dollars does one of them pay?"
    )


def _bulk_or_single(draw: Draw) -> Problem:
    who, thing = draw.person(), draw.pick(["light bulbs", "door hinges", "garden hooks"])
    box, single, boxes = draw.pick([6, 8, 10]), draw.number(3, 6), draw.number(3, 6)
    deal = box * single - draw.number(3, 9)
    work = Working()
    count = work.step(f"{who} needs @ {thing}.", f"{boxes}*{box}")
    alone = work.step("One by one they cost $@.", f"{count}*{single}")
    packed = work.step("In boxes they cost $@.", f"{boxes}*{deal}")
    work.step("The boxes save $@.", f"{alone}-{packed}")
    return work.problem(
        f"Sold one by one, {thing} cost ${single} each; a box of {box} costs ${deal}. {who} needs "
        f"exactly {boxes} boxes' worth. How much is saved by taking boxes instead of loose pieces?"
    )


def _wages_with_overtime(draw: Draw) -> Problem:
    who, job = draw.person(), draw.pick(["ferry deck", "sawmill", "greenhouse"])
    hours, over = draw.number(30, 38), draw.number(3, 9)
    wage = draw.number(12, 20, 2)
    work = Working()
    base = work.step("The normal hours earn $@.", f"{hours}*{wage}")
    extra = work.step("An hour of overtime earns $@.", f"{wage}+{wage}/2")
    more = work.step("The overtime earns $@.", f"{over}*{extra}")
    work.step("The week earns $@.", f"{base}+{more}")
    return work.problem(
        f"Work at the {job} pays ${wage} an hour, and half as much again for every hour of "
        f"overtime. Last week {who} did {hours} normal hours and {over} hours of overtime. What "
        "did the week earn?"
    )


def _raffle_profit(draw: Draw) -> Problem:
    books, tickets, price = draw.number(12, 20), draw.pick([20, 25]), draw.number(2, 3)
    prizes, worth = draw.number(3, 6), draw.number(20, 45, 5)
    aim = draw.pick(["a new stage curtain", "the lifeboat", "a school pond"])
    work = Working()
    sold = work.step("The school sells @ tickets.", f"{books}*{tickets}")
    income = work.step("They bring $@.", f"{sold}*{price}")
    spent = work.step("The prizes cost $@.", f"{prizes}*{worth}")
    work.step("The profit is $@.", f"{income}-{spent}")
    return work.problem(
        f"To pay for {aim}, a school raffles off {prizes} hampers that cost it ${worth} each. It "
        f"sells all {books} books of {tickets} tickets, every ticket at ${price}. How large is "
        "the profit?"
    )


TEMPLATES: Final = (
    _bakery_trays,
    _market_two_sorts,
    _cinema_groups,
    _saving_for_a_thing,
    _discount_in_percent,
    _change_from_a_note,
    _printing_flyers,
    _bulk_or_single,
    _wages_with_overtime,
    _raffle_profit,
)
