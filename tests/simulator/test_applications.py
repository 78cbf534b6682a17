"""Applications of one's own in the simulator: what keeps the contract passes, what does not is told so."""

import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tara.application import Context, Execute, Query, Simulation, StateMachine
from tara.cli import app
from tara.protocol.errors import ConfigurationError
from tara.simulator.campaign import Job, run_seed
from tara.simulator.contract_check import broken_contract, check_contract
from tara.simulator.mutants.registry import applied
from tara.simulator.system_under_test import subject_of

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
HERE = "tests.simulator.test_applications"
runner = CliRunner()


class WordsSimulation(Simulation):
    def next(self, draw: random.Random) -> Execute | Query:
        word = draw.choice(("apple", "pear", "plum", "fig", "date")).encode()
        return Query(word) if draw.random() < 0.4 else Execute(word)


class Words(StateMachine):
    """Collects words; the contract is kept. Those below break it, each in its own way."""

    simulation: type[Simulation] | str | None = WordsSimulation

    def __init__(self) -> None:
        self.words: list[str] = []

    def apply(self, command: bytes, context: Context) -> bytes:
        self.words.append(command.decode())
        return str(len(self.words)).encode()

    def query(self, question: bytes, context: Context) -> bytes:
        return str(self.words.count(question.decode())).encode()

    def snapshot(self) -> Iterator[bytes]:
        yield " ".join(self.words).encode()

    def restore(self, chunks: Iterable[bytes]) -> None:
        self.words = b"".join(chunks).decode().split()


class ByTheClock(Words):
    def apply(self, command: bytes, context: Context) -> bytes:
        return super().apply(command, context) + str(time.perf_counter_ns()).encode()


class ByTheAddress(Words):
    def snapshot(self) -> Iterator[bytes]:
        yield f"{' '.join(self.words)} {id(self)}".encode()


class InTheOrderOfASet(Words):
    def query(self, question: bytes, context: Context) -> bytes:
        return " ".join(set(self.words)).encode()


class Forgetful(Words):
    """Its snapshot lacks what its results depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.executed = 0

    def apply(self, command: bytes, context: Context) -> bytes:
        self.executed += 1
        return super().apply(command, context) + str(self.executed).encode()


class Lossy(Words):
    def restore(self, chunks: Iterable[bytes]) -> None:
        self.words = b"".join(chunks).decode().split()[1:]


class Curious(Words):
    def query(self, question: bytes, context: Context) -> bytes:
        self.words.append("asked")
        return b""


class FewSimulation(WordsSimulation):
    @classmethod
    def check(cls, application: Words) -> None:
        assert len(application.words) < 400, "too many words"


class Few(Words):
    simulation = FewSimulation


class VeryFewSimulation(WordsSimulation):
    @classmethod
    def check(cls, application: Words) -> None:
        assert len(application.words) < 20, "too many words"


class VeryFew(Words):
    simulation = VeryFewSimulation


class WrongSimulation(Simulation):
    def next(self, draw: random.Random) -> Execute | Query:
        return b"a command"  # type: ignore[return-value]


class Wrong(Words):
    simulation = WrongSimulation


class Silent(Words):
    simulation = None


class Elsewhere(Words):
    simulation = f"{HERE}:WordsSimulation"


@pytest.mark.parametrize("name", ["Words", "Few", "Elsewhere"])
def test_what_keeps_the_contract_passes(name: str) -> None:
    assert broken_contract(f"{HERE}:{name}") is None
    for seed in range(2):
        outcome = run_seed(Job(seed, 1, 1, app=f"{HERE}:{name}"))
        assert outcome.violation is None, outcome.detail
        assert outcome.checks["linearizable"] > 100
        assert outcome.checks["invariant"] > 100


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ByTheClock", "is not deterministic: step .* two replicas have different results"),
        ("ByTheAddress", "two replicas that did the same have different snapshots"),
        ("InTheOrderOfASet", "is not deterministic: step .* another process has another result"),
        ("Forgetful", "is not deterministic: step .* two replicas have different results"),
        ("Lossy", "a restored copy has another snapshot"),
        ("Curious", "is a read, but it changed the state"),
        ("VeryFew", "invariant: VeryFewSimulation.check: AssertionError: too many words"),
    ],
)
def test_what_breaks_the_contract_is_told_so(name: str, message: str) -> None:
    contract = broken_contract(f"{HERE}:{name}")

    assert contract is not None
    assert re.search(message, contract, re.DOTALL), contract


def test_replicas_that_differ_in_a_run_are_a_finding() -> None:
    outcome = run_seed(Job(0, 1, 1, app=f"{HERE}:ByTheClock"))

    assert outcome.violation == "agreement"
    assert "ByTheClock is not deterministic" in outcome.detail


def test_a_state_that_must_not_be_is_a_finding() -> None:
    outcome = run_seed(Job(0, 1, 1, app=f"{HERE}:VeryFew"))

    assert outcome.violation == "invariant"
    assert "too many words" in outcome.detail


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Silent", "does not say how to simulate it; set Silent.simulation"),
        ("Missing", "has no attribute 'Missing'"),
        ("WordsSimulation", "is not a subclass of tara.application.StateMachine"),
    ],
)
def test_what_cannot_be_simulated_is_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        subject_of(f"{HERE}:{name}", 1)


def test_a_simulation_that_draws_something_else_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="must be an Execute or a Query"):
        check_contract(f"{HERE}:Wrong")


#: Ways in which the protocol could break an application of one's own, and the seeds that they need.
@pytest.mark.parametrize(("mutant", "seeds"), [("read_does_not_wait", 30), ("records_ignored", 10)])
def test_the_application_is_its_own_model(mutant: str, seeds: int) -> None:
    with applied(mutant):
        outcomes = (run_seed(Job(seed, 1, 1, app=f"{HERE}:Words")) for seed in range(seeds))
        assert any(outcome.violation for outcome in outcomes)


@pytest.mark.parametrize("name", ["ledger:Ledger", "coordination"])
def test_the_command_simulates_applications(name: str) -> None:
    command = [sys.executable, "-c", "from tara.cli import main; main()"]
    options = ["sim", "run", "--app", name, "--seeds", "4", "--jobs", "1", "--json"]
    done = subprocess.run(
        command + options, cwd=EXAMPLES, env=os.environ, capture_output=True, text=True, check=False, timeout=120
    )

    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["durability"] == {"disk": 2, "memory": 2}
    assert summary["contract"] is None
    assert summary["rejoins"] >= 2
    assert summary["checks"]["invariant"] > 0


def test_the_command_says_that_an_application_breaks_its_contract() -> None:
    result = runner.invoke(app, ["sim", "run", "--app", f"{HERE}:ByTheClock", "--seeds", "1", "--jobs", "1"])

    assert result.exit_code == 1
    assert "is not deterministic" in result.output
