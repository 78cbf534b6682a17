"""Replicate a ledger from a streaming DataFrame, and query it with Spark SQL.

Run it from the project's directory: `.venv/bin/python examples/ledger_on_spark.py`. JSON files say who pays whom. A
transfer that would overdraw an account is refused, on every replica alike.
"""

import json
import random
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from tara import ApplicationError, Context, StateMachine, StreamingConfig, StreamingReplication, read_results
from tara.streaming.run import QueryProgress, follow, session


class Ledger(StateMachine):
    """Accounts and balances; everybody starts with 100. A command is JSON, {"from": name, "to": name, "amount": n};
    its result is what the payer has left."""

    def __init__(self) -> None:
        self._balances: dict[str, int] = {}

    def apply(self, command: bytes, context: Context) -> bytes:
        entry = json.loads(command)
        payer, payee, amount = entry["from"], entry["to"], entry["amount"]
        left = self._balance(payer) - amount
        if left < 0:
            raise ApplicationError(f"{payer} has only {self._balance(payer)}")
        self._balances[payer] = left
        self._balances[payee] = self._balance(payee) + amount
        return str(left).encode()

    def _balance(self, account: str) -> int:
        return self._balances.get(account, 100)

    def query(self, question: bytes, context: Context) -> bytes:
        return str(self._balance(question.decode())).encode()

    def snapshot(self) -> Iterator[bytes]:
        yield json.dumps(dict(sorted(self._balances.items()))).encode()

    def restore(self, chunks: Iterable[bytes]) -> None:
        self._balances = json.loads(b"".join(chunks))


def write_commands(directory: Path, accounts: list[str], transfers: int) -> None:
    """Every account is a client of its own."""
    choice = random.Random(2026)
    numbers = dict.fromkeys(accounts, 0)
    for file in range(3):
        lines = []
        for _ in range(transfers // 3):
            payer, payee = choice.sample(accounts, 2)
            lines.append(_line(payer, numbers[payer], {"from": payer, "to": payee, "amount": choice.randint(1, 40)}))
            numbers[payer] += 1
        (directory / f"{file}-transfers.json").write_text("".join(lines))


def _line(client: str, number: int, command: dict[str, object]) -> str:
    return json.dumps({"client": client, "number": number, "payload": json.dumps(command)}) + "\n"


def show(progress: QueryProgress) -> None:
    sys.stderr.write(f"\r{progress.commands} commands, {progress.results} results ")


def main() -> None:
    spark = session("local[2,4]", "ledger")
    with tempfile.TemporaryDirectory() as directory:
        source, results = Path(directory, "commands"), Path(directory, "results")
        source.mkdir()
        write_commands(source, accounts=["ada", "ben", "cy", "dee"], transfers=300)
        commands = spark.readStream.schema("client string, number long, payload string").json(str(source))
        config = StreamingConfig(checkpoint=str(Path(directory, "checkpoint")))
        query = StreamingReplication(commands, Ledger, config).start(results)
        follow(query, config, results, drain=True, show=show)
        sys.stderr.write("\n")
        read_results(spark, results).createOrReplaceTempView("results")
        spark.sql("select client, status, count(*) as commands from results group by all order by all").show()
        spark.sql(
            "select counter, client, number, status, cast(result as string) as result, view "
            "from results where status = 'failed' order by counter limit 5"
        ).show(truncate=False)
    spark.stop()


if __name__ == "__main__":
    main()
