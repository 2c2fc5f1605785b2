# SPDX-License-Identifier: Apache-2.0
"""How the ranks of a generation learn of each other, over two levels: nothing grows with the square of the ranks.

    leader    the ranks of a host learn who its leader is: its local rank 0
    member    each gives its record to the leader
    host      each leader gives one record of its host: its members' places, and each distinct set of settings once
    digest    one leader, the judge, checks these records and publishes one text: who is where, or what is wrong

If no launcher has given the ranks their places, each says first which machine it is on, and rank 0 gives the places
(`place`).

All of it goes through the rendezvous. Only the leaders fetch the digest there; they pass it on inside their hosts
(bootstrap.py). Every record is checked before it is used.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

from horovod.core.exceptions import StartError, text_of
from horovod.core.wording import counted, on_one_line
from horovod.world.agreed_sets import Places, agreed, check_places
from horovod.world.links import HINT
from horovod.world.rendezvous import Rendezvous
from horovod.world.topology import Identity, Topology, hosts_of, places_of, ranks_text

__all__ = ["TOLD_AS_THEY_ARE", "Digest", "Meeting", "check_record", "read_digest", "refusal"]

# Settings that must be equal on all ranks: (keyword, how the user spells it).
_EQUAL_SETTINGS = (
    ("fusion_threshold_bytes", "HOROVOD_FUSION_THRESHOLD"),
    ("transport", "HOROVOD_TRANSPORT"),
    ("on_gpus", "a setting for GPUs (horovodrun --explain gpu)"),
    ("pretend_hosts", "HOROVOD_PRETEND_HOSTS"),
    ("host_group_size", "HOROVOD_HOST_GROUP_SIZE"),
    ("size", "HOROVOD_SIZE"),
    ("replica_check_steps", "HOROVOD_REPLICA_CHECK_STEPS"),
    ("replica_check_whole", "HOROVOD_REPLICA_CHECK_WHOLE"),
    ("same_rows_check", "HOROVOD_SAME_ROWS_CHECK"),
    ("finite_check", "HOROVOD_FINITE_CHECK"),
    ("relays_above_hosts", "HOROVOD_RELAYS_ABOVE_HOSTS"),
    ("profile", "HOROVOD_PROFILE"),
    ("dynamic_process_sets", "whether process sets are dynamic (HOROVOD_DYNAMIC_PROCESS_SETS, init)"),
    ("version", "the installed version of Horovod"),
)

# The published records: their fields and types, checked before any is used.
Fields = dict[str, tuple[type, ...]]
_TEXT, _NUMBER, _LIST, _TEXT_OR_NONE = (str,), (int,), (list,), (str, type(None))
WHEREABOUTS: Fields = {**dict.fromkeys(("hostname", "machine"), _TEXT), "reached": _LIST}
LEADER: Fields = {"rank": _NUMBER, "local_address": _TEXT_OR_NONE, "problem": _TEXT_OR_NONE}
TOLD_AS_THEY_ARE = (  # by their keywords
    *("fusion_threshold_bytes", "host_group_size", "replica_check_steps", "replica_check_whole"),
    *("dynamic_process_sets", "relays_above_hosts", "same_rows_check", "finite_check"),
)
SETTINGS: Fields = {
    **dict.fromkeys(("size", *TOLD_AS_THEY_ARE), _NUMBER),
    **dict.fromkeys(("transport", "on_gpus", "pretend_hosts", "profile", "finite_check", "version"), _TEXT),
    "process_sets": _LIST,
}
PLACE: Fields = {
    **dict.fromkeys(("rank", "local_rank", "local_size", "port"), _NUMBER),
    **dict.fromkeys(("hostname", "address"), _TEXT),
    "problem": _TEXT_OR_NONE,  # why it has no port
    "apart": _TEXT_OR_NONE,  # why it cannot share memory with its host's leader
}
MEMBER: Fields = {**PLACE, "settings": (dict,)}
HOST: Fields = {"members": _LIST, "settings": _LIST}
OUTCOME: Fields = {"problem": _TEXT_OR_NONE}
_DIGEST: Fields = {**OUTCOME, "code": _TEXT, **dict.fromkeys(("hosts", "places", "process_sets"), _LIST)}

_WITHOUT_PORTS = ("auto", "shm")  # what HOROVOD_TRANSPORT may be on one host if a rank has no port
_MISSING = object()  # of none of the types
_CONNECTS = " to connect"
_KEYS_AT_ONCE = 256  # so that no answer comes near the longest message


@dataclasses.dataclass(frozen=True)
class Digest:
    """The facts that every rank knows. `places`: address and port by rank. `process_sets`: those given to init."""

    topology: Topology
    places: list[tuple[str, int]]
    process_sets: Places


class Meeting:
    """One rank's part in it. Methods block until `deadline` at most, and raise StartError, RankGone or ChannelError."""

    def __init__(
        self,
        rendezvous: Rendezvous,
        identity: Identity,
        hostname: str,
        generation: int,
        deadline: float,
        start_timeout_s: float,
    ) -> None:
        self._rendezvous = rendezvous
        self._identity = identity
        self._hostname = hostname
        self._generation = generation
        self._deadline = deadline
        self._start_timeout_s = start_timeout_s

    @property
    def leads(self) -> bool:
        """True if this rank is its host's leader."""
        return self._identity.local_rank == 0

    @property
    def judges(self) -> bool:
        """True if this rank puts the hosts' records together."""
        return self.leads and self._identity.cross_rank == 0

    # places

    def place(self, here: dict[str, Any]) -> dict[str, Any]:
        """This rank's place, from the word of all ranks about where they are; `address`: of rank 0, for all of them.

        Here the meeting's identity has nothing but rank and size. `here`: hostname, machine, and the addresses at which
        this rank reaches rank 0.
        """
        self._put(f"where/{self._identity.rank}", here)
        if self._identity.rank == 0:
            self._give_places()
        place = self._one(f"place/{self._identity.rank}", {**OUTCOME, "code": _TEXT})
        if place["problem"] is not None:
            raise StartError(place["problem"], place["code"])
        check_record("rank 0", place, {"address": _TEXT})
        return place

    def _give_places(self) -> None:
        ranks = range(self._identity.size)
        try:
            where = self._all([f"where/{rank}" for rank in ranks], WHEREABOUTS)
            common = [one for one in where[0]["reached"] if all(one in other["reached"] for other in where)]
            if not common:
                reaches = "; ".join(
                    f"rank {rank}: {', '.join(map(str, one['reached']))}" for rank, one in enumerate(where)
                )
                raise StartError(
                    f"no address of rank 0 is reached by all ranks; reached are, by {reaches}\n"
                    "hint: HOROVOD_GLOO_IFACE names the network interface that connects all hosts",
                    "start-connection",
                )
            given = [{"problem": None, "code": "", "address": common[0], **place} for place in places_of(where)]
        except StartError as error:
            given = [refusal(error)] * len(ranks)
        for rank, place in zip(ranks, given, strict=True):
            self._put(f"place/{rank}", place)

    # a host

    def offer(self, local_address: str | None, problem: str | None) -> None:
        """The leader's first word: where its host's ranks reach it, or why they cannot."""
        mine = {"rank": self._identity.rank, "local_address": local_address, "problem": problem}
        self._claim(f"leader/{self._hostname}", mine, f"local rank 0 of host {self._hostname!r}")

    def leader(self) -> dict[str, Any]:
        """The offer of the host's leader."""
        return self._one(f"leader/{self._hostname}", LEADER)

    def report(self, record: dict[str, Any]) -> None:
        """A member's record, for its leader."""
        place = f"local rank {self._identity.local_rank} of host {self._hostname!r}"
        self._claim(f"member/{self._hostname}/{self._identity.local_rank}", record, place)

    def gather(self, own: dict[str, Any]) -> list[dict[str, Any]]:
        """The records of all ranks of the leader's host, by local rank; `own` is the leader's.

        Gives the host's record to the judge.
        """
        keys = [f"member/{self._hostname}/{local_rank}" for local_rank in range(1, self._identity.local_size)]
        members = [own, *self._all(keys, MEMBER)]
        settings: list[list[Any]] = []  # of values and the ranks that have them
        for member in members:
            check_record(f"rank {member['rank']}", member["settings"], SETTINGS)
            ranks = next((ranks for values, ranks in settings if values == member["settings"]), None)
            if ranks is None:
                settings.append([member["settings"], ranks := []])
            ranks.append(member["rank"])
        places = [{name: member[name] for name in PLACE} for member in members]
        number = self._identity.cross_rank
        record = {"rank": self._identity.rank, "members": places, "settings": settings}
        self._claim(f"host/{number}", record, f"the leader of host number {number}")
        return members

    # all hosts

    def judge(self) -> dict[str, Any]:
        """Makes the digest and publishes it. If something is wrong, it says what."""
        try:
            digest = self._judged()
        except StartError as error:
            digest = refusal(error)
        self._put("digest", digest)
        return digest

    def digest(self) -> dict[str, Any]:
        """The judge's word."""
        return self._one("digest", _DIGEST)

    def _judged(self) -> dict[str, Any]:
        hosts = self._all([f"host/{number}" for number in range(self._identity.cross_size)], HOST)
        places: dict[int, dict[str, Any]] = {}
        settings = [_pair(pair) for host in hosts for pair in host["settings"]]
        _check_equal(settings)
        process_sets = agreed([(values["process_sets"], ranks) for values, ranks in settings])
        for host in hosts:
            for place in host["members"]:
                check_record("a rank", place, PLACE)
                places[place["rank"]] = place
        listed = sorted(rank for _, ranks in settings for rank in ranks)
        if not listed == sorted(places) == list(range(self._identity.size)):
            raise StartError(
                f"the places of the ranks do not fit together: on {counted(len(hosts), 'host')} are "
                f"{ranks_text(sorted(places))}, expected 0 to {self._identity.size - 1}\n"
                "hint: HOROVOD_CROSS_RANK and HOROVOD_CROSS_SIZE number the hosts; horovodrun sets them",
                "start-settings",
            )
        topology = Topology.of(list(hosts_of(places).values()))
        apart = {rank: place["apart"] for rank, place in sorted(places.items()) if place["apart"] is not None}
        if apart and settings[0][0]["transport"] == "shm":
            why = "; ".join(apart.values())
            text = f"HOROVOD_TRANSPORT=shm, but the ranks of this host cannot share memory: {why}"
            raise StartError(text, "start-transport")
        topology = topology.split({topology.host_of_rank[rank] for rank in apart})
        wrong = [place["problem"] for _, place in sorted(places.items()) if place["problem"] is not None]
        if wrong and (len(topology.hosts) > 1 or settings[0][0]["transport"] not in _WITHOUT_PORTS):
            raise StartError("the ranks could not connect to each other: " + "; ".join(wrong), "start-connection")
        addresses = [[places[rank]["address"], places[rank]["port"]] for rank in range(len(places))]
        told = {"hosts": topology.hosts, "places": addresses, "process_sets": process_sets}
        return {"problem": None, "code": "", **told}

    # a step of the hosts' leaders

    def all_are_here(self) -> float:
        """All ranks have called init: the time limit starts again, the same for all. Returns the new deadline."""
        self._deadline = time.monotonic() + self._start_timeout_s
        return self._deadline

    def finish(self, leader: int, leaders: Sequence[int], problem: str | None) -> dict[str, Any]:
        """After the leaders have linked: exchanges what went wrong, so that all get the same error. Rank 0 judges."""
        if leader != 0:
            self._put(f"linked/{leader}", {"problem": problem})
            return self._one("outcome", OUTCOME)
        outcomes = self._all([f"linked/{other}" for other in leaders if other != 0], OUTCOME)
        problems = [problem, *(outcome["problem"] for outcome in outcomes)]
        outcome = {"problem": "; ".join(filter(None, problems)) or None}
        self._put("outcome", outcome)
        return outcome

    # keys

    def _key(self, name: str) -> str:
        return f"world/{self._generation}/{name}"

    def _remaining(self) -> float:
        return max(1.0, self._deadline - time.monotonic())

    def _put(self, name: str, value: Any) -> None:
        self._rendezvous.put(self._key(name), value, self._remaining())

    def _claim(self, name: str, value: dict[str, Any], place: str) -> None:
        """Publishes what only one rank may be."""
        first = self._rendezvous.compare_and_set(self._key(name), value, self._remaining())
        if first != value:
            other = first.get("rank", "?") if isinstance(first, dict) else "?"
            raise StartError(
                f"rank {self._identity.rank} says that it is {place}, and so does rank {other}\n"
                "hint: HOROVOD_HOSTNAME must be equal for the ranks of a host and differ between hosts",
                "start-settings",
            )

    def _one(self, name: str, fields: Fields) -> dict[str, Any]:
        return self._all([name], fields)[0]

    def _all(self, names: Sequence[str], fields: Fields) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for begin in range(0, len(names), _KEYS_AT_ONCE):
            keys = [self._key(name) for name in names[begin : begin + _KEYS_AT_ONCE]]
            values = self._rendezvous.get_many(keys, self._remaining())
            if absent := [key for key in keys if key not in values]:
                raise self.late(_whose(absent[0].split("/", 2)[2]))
            for key in keys:
                check_record(key, values[key], fields)
                found.append(values[key])
        return found

    def late(self, whom: str) -> StartError:
        """The error for a wait for `whom` that has taken too long. Ranks that have not even come are named instead."""
        here = self._rendezvous.entered(self._generation)
        size, waited_s = self._identity.size, f"{self._start_timeout_s:g} s"
        absent = [rank for rank in range(size) if rank not in here]
        hint = "hint: look at the output of the ranks it waits for"
        if absent:
            whom = f"{ranks_text(absent)} of {size}, which {'has' if len(absent) == 1 else 'have'} not called init"
            whom += f"; here: {ranks_text(here) if here else 'no rank'}"
        else:
            theirs = "; HOROVOD_HOSTNAME, HOROVOD_LOCAL_RANK and HOROVOD_CROSS_RANK must fit together on all ranks"
            hint = HINT.strip() if whom.endswith(_CONNECTS) else hint + theirs
            whom += f", though all {size} ranks have called init"
        return StartError(
            f"rank {self._identity.rank} waited {waited_s} in init for {whom}\n"
            f"{hint}; HOROVOD_START_TIMEOUT (seconds) lets init wait longer",
            "start-timeout",
        )


def _whose(name: str) -> str:
    """Names the publisher of this key, in words."""
    kind, _, where = name.partition("/")
    host, _, local_rank = where.rpartition("/")
    return {
        "where": f"rank {where} to say where it is",
        "place": "rank 0, which gives the places",
        "leader": f"local rank 0 of host {where!r}",
        "member": f"local rank {local_rank} of host {host!r}",
        "host": f"the leader of host number {where}",
        "digest": "the leader of host number 0",
        "linked": f"rank {where}{_CONNECTS}",
        "outcome": f"rank 0{_CONNECTS}",
    }[kind]


def check_record(whose: str, record: Any, fields: Fields) -> None:
    """Checks that another rank's record has these fields, of these types; raises StartError."""
    wrong = list(fields)
    if isinstance(record, dict):
        wrong = [name for name, kinds in fields.items() if not isinstance(record.get(name, _MISSING), kinds)]
    if wrong:
        raise StartError(
            f"{whose} published a record that cannot be read: {', '.join(wrong)} missing or of another type\n"
            "hint: install the same version of Horovod for all ranks",
            "start-version",
        )


def refusal(error: StartError) -> dict[str, Any]:
    """The digest that says what is wrong."""
    return {"problem": text_of(error), "code": error.code, "hosts": [], "places": [], "process_sets": []}


def read_digest(digest: Any, size: int) -> Digest:
    """The judge's word, checked. Raises StartError for what it says is wrong."""
    check_record("the first host's leader", digest, _DIGEST)
    if digest["problem"] is not None:
        raise StartError(digest["problem"], digest["code"])
    hosts, places = digest["hosts"], digest["places"]
    are_lists = all(isinstance(host, list) for host in hosts)
    ranks = [rank for host in hosts for rank in host] if are_lists else []
    fits = all(isinstance(rank, int) for rank in ranks) and sorted(ranks) == list(range(size)) == list(
        range(len(places))
    )
    if not fits or not all(
        isinstance(place, list) and [type(field) for field in place] == [str, int] for place in places
    ):
        raise StartError("the first host's leader published a digest that cannot be read", "start-version")
    topology = Topology.of([host for host in hosts if host])
    return Digest(topology, [(address, port) for address, port in places], check_places(digest["process_sets"]))


def _pair(pair: Any) -> tuple[dict[str, Any], list[int]]:
    if not isinstance(pair, list | tuple) or len(pair) != 2 or not isinstance(pair[1], list) or not pair[1]:
        raise StartError("a host published settings that cannot be read", "start-version")
    check_record("a host", pair[0], SETTINGS)
    if not all(isinstance(rank, int) for rank in pair[1]):
        raise StartError("a host published settings of ranks that cannot be read", "start-version")
    return pair[0], pair[1]


def _check_equal(settings: Sequence[tuple[dict[str, Any], list[int]]]) -> None:
    """Of pairs of settings and the ranks that have them."""
    for keyword, variable in _EQUAL_SETTINGS:
        ranks_of_value: dict[Any, list[int]] = {}
        for values, ranks in settings:
            ranks_of_value.setdefault(values[keyword], []).extend(ranks)
        if len(ranks_of_value) > 1:
            got = ", ".join(
                f"{on_one_line(value)} on {ranks_text(sorted(ranks))}" for value, ranks in ranks_of_value.items()
            )
            raise StartError(
                f"the ranks disagree about {variable}: {got}\n"
                "hint: give it to all ranks alike: a setting on horovodrun's command line or before it",
                "start-settings",
            )
