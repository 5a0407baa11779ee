"""Invented people: names from a letter chain learnt from common ones, used as unevenly as real names are.

The chain draws each letter from the two before it, so frequent pairs of letters stay frequent and names stay
pronounceable; a few names are very common and most are rare (Zipf), as in a population register.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

GIVEN_NAMES = (
    "james mary robert patricia john jennifer michael linda david elizabeth william barbara richard susan "
    "joseph jessica thomas sarah charles karen christopher lisa daniel nancy matthew sandra anthony betty "
    "mark ashley donald emily steven kimberly andrew margaret paul donna joshua michelle kenneth carol "
    "kevin amanda brian melissa george deborah timothy stephanie ronald rebecca jason sharon edward laura "
    "jeffrey cynthia ryan amy jacob kathleen gary angela nicholas anna eric brenda jonathan emma stephen "
    "samantha larry katherine justin christine scott helen brandon debra benjamin rachel samuel carolyn "
    "gregory janet alexander maria patrick catherine frank heather raymond diane jack olivia dennis julie "
    "jerry joyce tyler victoria aaron ruth jose virginia adam lauren nathan kelly henry christina zachary "
    "joan douglas evelyn peter judith kyle andrea noah hannah ethan jacqueline jeremy martha walter "
    "gloria keith teresa austin sara sean janice roger ann"
)
SURNAMES = (
    "smith johnson williams brown jones garcia miller davis rodriguez martinez hernandez lopez gonzalez "
    "wilson anderson thomas taylor moore jackson martin lee perez thompson white harris sanchez clark "
    "ramirez lewis robinson walker young allen king wright scott torres nguyen hill flores green adams "
    "nelson baker hall rivera campbell mitchell carter roberts gomez phillips evans turner diaz parker "
    "cruz edwards collins reyes stewart morris morales murphy cook rogers gutierrez ortiz morgan cooper "
    "peterson bailey reed kelly howard ramos kim cox ward richardson watson brooks chavez wood bennett "
    "gray mendoza ruiz hughes price alvarez castillo sanders patel myers long ross foster jimenez powell "
    "jenkins perry russell sullivan bell coleman butler henderson barnes fisher vasquez simmons graham "
    "murray ford castro freeman wells webb schneider fischer weber meyer"
)
LONGEST = 12
END = "$"


def invent_names(examples: str, count: int, random: np.random.Generator) -> list[str]:
    """The examples and as many different new names as it takes to have `count`."""
    chain = letter_chain(examples.split())
    names = dict.fromkeys(examples.split()[:count])
    while len(names) < count:
        names.setdefault(one_name(chain, random))
    return list(names)


def letter_chain(examples: list[str]) -> dict[str, list[str]]:
    """Every letter seen after each two letters, as often as it was seen."""
    following: dict[str, list[str]] = defaultdict(list)
    for name in examples:
        padded = "^^" + name + END
        for start in range(len(padded) - 2):
            following[padded[start : start + 2]].append(padded[start + 2])
    return following


def one_name(chain: dict[str, list[str]], random: np.random.Generator) -> str:
    while True:
        text = "^^"
        while not text.endswith(END) and len(text) < LONGEST + 3:
            choices = chain[text[-2:]]
            text += choices[int(random.random() * len(choices))]
        name = text[2:-1]
        if text.endswith(END) and len(name) >= 3:
            return name


def draw_uneven(names: list[str], records: int, random: np.random.Generator) -> NDArray[np.bytes_]:
    """`records` names; the one of rank r is drawn in proportion to 1 / (r + 10)."""
    weights = 1.0 / (np.arange(len(names)) + 10.0)
    chosen = random.choice(len(names), records, p=weights / weights.sum())
    return np.array(names, dtype=f"S{LONGEST}")[chosen]


def draw_birth_dates(records: int, random: np.random.Generator) -> NDArray[np.bytes_]:
    """Day, month and year as eight digits; ages spread over a life, dense in the middle."""
    years = 1935 + (random.beta(2.0, 1.6, records) * 72).astype(int)
    days_into_year = random.integers(0, 365, records)
    dates = (years - 1970).astype("datetime64[Y]").astype("datetime64[D]") + days_into_year
    text = np.datetime_as_string(dates)  # yyyy-mm-dd
    parts = text.astype("S10").view("S1").reshape(records, 10)
    return np.ascontiguousarray(parts[:, [8, 9, 5, 6, 0, 1, 2, 3]]).view("S8").reshape(records)
