"""The tables in `docs/simulator.md`: faults, checks and mutants.

`python -m tara.simulator.tables` prints them; a test compares them with the page.
"""

from collections.abc import Iterator

from tara.simulator.checks.kinds import CHECKS
from tara.simulator.faults.kinds import SECTIONS
from tara.simulator.mutants.registry import MODULES, mutants


def faults() -> Iterator[str]:
    yield "| kind | what happens |"
    yield "| --- | --- |"
    for section, kinds in SECTIONS.items():
        yield f"| **{section}** | |"
        for kind, happens in kinds.items():
            yield f"| `{kind}` | {happens} |"


def checks() -> Iterator[str]:
    yield "| check | says |"
    yield "| --- | --- |"
    for check, says in CHECKS.items():
        yield f"| `{check}` | {says} |"


def rules() -> Iterator[str]:
    """What each mutant takes away, by part of the code."""
    yield "| mutant | the rule that it takes away |"
    yield "| --- | --- |"
    for area in MODULES.values():
        yield f"| **{area}** | |"
        for mutant in mutants():
            if mutant.area == area:
                yield f"| `{mutant.name}` | {mutant.undoes} |"


if __name__ == "__main__":
    print("\n\n".join("\n".join(table) for table in (faults(), checks(), rules())))
