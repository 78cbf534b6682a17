"""A ledger: accounts, and transfers between them. A replicated service of one's own, from end to end.

Start it on local Spark, in this directory, and use it from another terminal:

    tara up --app ledger:Ledger --data-dir /tmp/ledger
    python ledger.py "$(tara endpoints --data-dir /tmp/ledger)"

`Ledger` is what runs on every replica; `LedgerClient` is what a program uses. A transfer is one command: it happens
once, as a whole, or not at all, whoever crashes meanwhile. `main` lets several clients move money at random and then
adds it all up. `LedgerSimulation` does the same in the simulator, which makes everything crash that can:

    tara sim run --app ledger:Ledger --seeds 100
"""

import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random

import msgspec
from msgspec import Struct

from tara import ApplicationError, Client, CommandFailed, Context, Execute, Query, Simulation, StateMachine


class Open(Struct, array_like=True, frozen=True, tag="open"):
    """Open an account with a deposit. Result: None."""

    account: str
    deposit: int


class Transfer(Struct, array_like=True, frozen=True, tag="transfer"):
    """Move an amount. Result: what the sender has left."""

    sender: str
    receiver: str
    amount: int


class Balance(Struct, array_like=True, frozen=True, tag="balance"):
    """A question. Answer: the balance."""

    account: str


class Total(Struct, array_like=True, frozen=True, tag="total"):
    """A question. Answer: the money in all accounts."""


_command = msgspec.msgpack.Decoder(Open | Transfer)
_question = msgspec.msgpack.Decoder(Balance | Total)
_encode = msgspec.msgpack.Encoder().encode


ACCOUNTS = 10
DEPOSIT = 1_000


class LedgerSimulation(Simulation):
    """A client that opens accounts, moves money and asks for balances."""

    def next(self, draw: Random) -> Execute | Query:
        sender, receiver = draw.sample(range(ACCOUNTS), 2)
        kind = draw.random()
        if kind < 0.15:
            return Execute(_encode(Open(f"account-{sender}", DEPOSIT)))
        if kind < 0.7:
            return Execute(_encode(Transfer(f"account-{sender}", f"account-{receiver}", draw.randint(1, DEPOSIT))))
        return Query(_encode(Total() if kind < 0.8 else Balance(f"account-{sender}")))

    @classmethod
    def check(cls, application: "Ledger") -> None:
        balances = application.balances.values()
        assert sum(balances) == DEPOSIT * len(balances), "money was made or lost"
        assert min(balances, default=0) >= 0, "somebody has less than nothing"


class Ledger(StateMachine):
    """Depends on nothing but its commands, so all replicas stay equal."""

    simulation = LedgerSimulation

    def __init__(self) -> None:
        self.balances: dict[str, int] = {}

    def apply(self, command: bytes, context: Context) -> bytes:
        match _decode(_command, command):
            case Open(account, deposit):
                if account in self.balances:
                    raise ApplicationError(f"account {account} exists")
                if deposit < 0:
                    raise ApplicationError("a deposit is not negative")
                self.balances[account] = deposit
                return _encode(None)
            case Transfer(sender, receiver, amount):
                return _encode(self._transfer(sender, receiver, amount))
        raise AssertionError("the decoder knows no other command")

    def _transfer(self, sender: str, receiver: str, amount: int) -> int:
        # Check everything first: a command that fails must not have done half of its work.
        if amount <= 0:
            raise ApplicationError("an amount is positive")
        if self._balance(sender) < amount:
            raise ApplicationError(f"account {sender} has {self.balances[sender]}, not {amount}")
        self._balance(receiver)
        self.balances[sender] -= amount
        self.balances[receiver] += amount
        return self.balances[sender]

    def query(self, question: bytes, context: Context) -> bytes:
        match _decode(_question, question):
            case Balance(account):
                return _encode(self._balance(account))
            case Total():
                return _encode(sum(self.balances.values()))
        raise AssertionError("the decoder knows no other question")

    def _balance(self, account: str) -> int:
        if account not in self.balances:
            raise ApplicationError(f"no account {account}")
        return self.balances[account]

    def snapshot(self) -> Iterator[bytes]:
        # Sorted: the same balances give the same bytes on every replica, in whatever order accounts were opened.
        yield _encode(dict(sorted(self.balances.items())))

    def restore(self, chunks: Iterable[bytes]) -> None:
        self.balances = msgspec.msgpack.decode(b"".join(chunks), type=dict[str, int])


def _decode(decoder: msgspec.msgpack.Decoder, data: bytes) -> object:
    try:
        return decoder.decode(data)
    except msgspec.DecodeError as error:
        raise ApplicationError(f"the ledger does not understand this: {error}") from error


class LedgerClient:
    """Typed methods over Tara's client."""

    def __init__(self, endpoints: str) -> None:
        self._client = Client(endpoints)

    def open(self, account: str, deposit: int) -> None:
        self._client.execute(_encode(Open(account, deposit)))

    def transfer(self, sender: str, receiver: str, amount: int) -> int:
        return int(msgspec.msgpack.decode(self._client.execute(_encode(Transfer(sender, receiver, amount)))))

    def balance(self, account: str) -> int:
        return int(msgspec.msgpack.decode(self._client.query(_encode(Balance(account)))))

    def total(self) -> int:
        return int(msgspec.msgpack.decode(self._client.query(_encode(Total()))))

    def __enter__(self) -> "LedgerClient":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()


def spend(endpoints: str, seed: int, transfers: int) -> int:
    """Move money at random; how many transfers were refused because an account had too little."""
    random, refused = Random(seed), 0
    with LedgerClient(endpoints) as ledger:
        for _ in range(transfers):
            sender, receiver = random.sample(range(ACCOUNTS), 2)
            try:
                ledger.transfer(f"account-{sender}", f"account-{receiver}", random.randint(1, DEPOSIT))
            except CommandFailed:
                refused += 1
    return refused


def main(endpoints: str, clients: int = 4, transfers: int = 250) -> None:
    with LedgerClient(endpoints) as ledger:
        before = ledger.total()
        if before == 0:
            for number in range(ACCOUNTS):
                ledger.open(f"account-{number}", DEPOSIT)
            before = ledger.total()
        with ThreadPoolExecutor(clients) as pool:
            refused = sum(pool.map(lambda seed: spend(endpoints, seed, transfers), range(clients)))
        after = ledger.total()
    print(f"{clients * transfers - refused} transfers, {refused} refused; {before} before, {after} after")
    if before != after:
        sys.exit("money was made or lost")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python ledger.py host:port,host:port")
    main(sys.argv[1])
