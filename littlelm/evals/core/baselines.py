"""What guessing scores on each of the 22 tasks, and how many items each has.

Version 1 is the table that nanochat's published numbers use; version 2 is DCLM's correction of September 2025, in which
three tasks differ. Both are reported always, because a CORE without its version cannot be compared.
"""

from __future__ import annotations

V1: dict[str, float] = {
    "hellaswag_zeroshot": 25.0,
    "jeopardy": 0.0,
    "bigbench_qa_wikidata": 0.0,
    "arc_easy": 25.0,
    "arc_challenge": 25.0,
    "copa": 50.0,
    "commonsense_qa": 20.0,
    "piqa": 50.0,
    "openbook_qa": 25.0,
    "lambada_openai": 0.0,
    "hellaswag": 25.0,
    "winograd": 50.0,
    "winogrande": 50.0,
    "bigbench_dyck_languages": 0.0,
    "agi_eval_lsat_ar": 20.0,
    "bigbench_cs_algorithms": 0.0,
    "bigbench_operators": 0.0,
    "bigbench_repeat_copy_logic": 0.0,
    "squad": 0.0,
    "coqa": 0.0,
    "boolq": 62.0,
    "bigbench_language_identification": 9.1,
}
"""Accuracy of guessing, percent."""

V2: dict[str, float] = {
    **V1,
    "commonsense_qa": 40.3,
    "agi_eval_lsat_ar": 25.0,
    "bigbench_language_identification": 25.0,
}

ITEMS: dict[str, int] = {
    "hellaswag_zeroshot": 10042,
    "jeopardy": 2117,
    "bigbench_qa_wikidata": 20321,
    "arc_easy": 2376,
    "arc_challenge": 1172,
    "copa": 100,
    "commonsense_qa": 1221,
    "piqa": 1838,
    "openbook_qa": 500,
    "lambada_openai": 5153,
    "hellaswag": 10042,
    "winograd": 273,
    "winogrande": 1267,
    "bigbench_dyck_languages": 1000,
    "agi_eval_lsat_ar": 230,
    "bigbench_cs_algorithms": 1320,
    "bigbench_operators": 210,
    "bigbench_repeat_copy_logic": 32,
    "squad": 10570,
    "coqa": 7983,
    "boolq": 3270,
    "bigbench_language_identification": 10000,
}
"""Items of each task; the bundle's own table counts arc_challenge wrongly, so either number is accepted."""
