"""What must be true at the end: what happened outside, what the rows say, and what was told."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final, LiteralString, TypeAlias

from commitline.identity import UNDO_PREFIX, started_run_of
from commitline.ledger.pool import Pool
from commitline.tests.fuzz.attempt import BY_ATTEMPT
from commitline.tests.fuzz.scene import Scene
from commitline.tests.fuzz.tools import TOOLS
from commitline.tests.integration.database import sql

Row: TypeAlias = Mapping[str, Any]

_ACTIONS: Final[LiteralString] = """
select a.*, a.status = 'done' and a.effect_possible and a.compensator is not null
            and a.undone_by is null and a.adopted_at is null and r.undo_ended_at is not null
            and not exists (select from agent_actions u where u.undoes = a.key)
            and not exists (select from agent_relay q where q.key = a.key) as to_undo
  from agent_actions a join agent_runs r using (run_key)
 order by a.created_at, a.key"""
_FACTS: Final[LiteralString] = "select * from agent_domain_keys"
_LEFT: Final[LiteralString] = """
select a.key,
       format('is pending at the end (exit: %%s): %%s of a run that is %%s%%s',
              coalesce(commitline_exit(a), 'none'),
              case when a.parked_at is not null then 'parked: ' || a.parked_reason
                   when a.dispatched_at is null then 'an intent' else 'dispatched' end,
              r.state, case when q.key is not null then ', queued to ' || q.why else '' end) as why
  from agent_actions a
  join agent_runs r using (run_key)
  left join agent_relay q using (key)
 where a.status = 'pending' and commitline_exit(a) is distinct from 'nobody'
union all
select q.key, format('is in the queue (%%s), and has an end', q.why)
  from agent_relay q join agent_actions a using (key)
 where a.status = 'done' and (q.why <> 'undo' or a.undone_by is not null)
union all
select run_key, format('is a run without an end: %%s', state)
  from agent_runs where state <> 'ended' and not starts_with(run_key, 'outbox/')
union all
select a.key, 'was sent after its run had been stopped'
  from agent_actions a join agent_runs r using (run_key)
  -- Of a sub-agent's run the moment is from before its lock, and another run's call does not lock
  -- this one: `_sent_after_stop`.
 where r.parent_key is null and a.claimed_by = a.key and a.dispatched_at > r.stopped_at
   and not a.relayed and not starts_with(a.position, 'undo-')"""
"""What is left after every exit was taken, by the ledger's own `commitline_exit`; and what was sent
although its run had been stopped."""


_ASKED: Final[LiteralString] = """
select a.key, format('is %%s, and was withdrawn', a.decision) as why
  from agent_approvals a where decision <> 'expired' and withdrawn_at is not null
union all
select q.key, 'was answered, and withdrawn'
  from agent_questions q where answered_at is not null and withdrawn_at is not null
union all
select a.key, format('is carried out, and was %%s', coalesce(p.decision, 'not decided about'))
  from agent_actions a join agent_approvals p using (key)
 where p.decision is distinct from 'approved'
union all
select a.key, format('is carried out as %%s, and was approved as %%s', a.args, p.args)
  from agent_actions a join agent_approvals p using (key)
 where a.args::text <> coalesce(p.edited_args, p.args)::text"""
_ANSWERED: Final[LiteralString] = "select key from agent_questions where answered_at is not null"


@dataclass(frozen=True)
class Violation:
    """Something that must not be."""

    about: str
    """The row, the run or the business fact."""
    text: str
    keys: Sequence[str]
    """The rows whose history explains it."""

    def __str__(self) -> str:
        return f"{self.about}: {self.text}"


async def violations(scene: Scene, pool: Pool) -> list[Violation]:
    """Return everything that must not be."""
    rows = {row["key"]: row for row in await sql(pool, _ACTIONS)}
    facts = {row["domain_key"]: row for row in await sql(pool, _FACTS)}
    checks = _Checks(scene, rows, facts)
    found = [*scene.wrong, *checks.all()]
    found += [(row["key"], row["why"]) for row in await sql(pool, _LEFT)]
    found += [(row["key"], row["why"]) for row in await sql(pool, _ASKED)]
    answered = {row["key"] for row in await sql(pool, _ANSWERED)}
    found += checks.made_without_answer(answered)
    return [Violation(about, text, checks.related(about)) for about, text in found]


class _Checks:
    def __init__(self, scene: Scene, rows: Mapping[str, Row], facts: Mapping[str, Row]) -> None:
        self._scene = scene
        self._effects = scene.provider.effects
        self._rows = rows
        self._facts = facts
        self._undos: defaultdict[str, list[Row]] = defaultdict(list)
        self._repeats: defaultdict[str, list[Row]] = defaultdict(list)
        for row in rows.values():
            if row["undoes"] is not None and row["duplicate_of"] is None:
                self._undos[row["undoes"]].append(row)
            if row["duplicate_of"] is not None:
                self._repeats[row["duplicate_of"]].append(row)

    def all(self) -> Iterator[tuple[str, str]]:
        for key, row in self._rows.items():
            for text in (
                *self._outcome(row),
                *self._undo(row),
                *self._sent_after_stop(row),
                *self._repeat(row),
                *self._told(row),
            ):
                yield key, text
        yield from self._facts_stand_once()
        yield from self._keys_are_held()
        yield from self._intents_end()
        yield from self._one_word_counts()

    def made_without_answer(self, answered: AbstractSet[str]) -> Iterator[tuple[str, str]]:
        """The calls of a tool that asks: none is made before a person has answered."""
        for key, row in self._rows.items():
            asks = TOOLS[row["tool"]].asks and row["duplicate_of"] is None
            if asks and self._effects[row["idempotency_key"]] and key not in answered:
                yield key, "was made, and nobody had answered its question"

    def _one_word_counts(self) -> Iterator[tuple[str, str]]:
        for (key, about), words in self._scene.words.items():
            if len(words) > 1:
                yield key, f"more than one {about} counts: {words}"

    def related(self, key: str) -> list[str]:
        """Return the rows that have to do with one: what it undoes, what undoes it, its repeats."""
        near: dict[str, None] = {key: None}
        for _ in range(2):
            for one in list(near):
                row = self._rows.get(one)
                if row is None:
                    continue
                others = (row["duplicate_of"], row["undoes"], row["undone_by"], row["run_key"])
                near |= dict.fromkeys(other for other in others if other is not None)
                near |= dict.fromkeys(undo["key"] for undo in self._undos[one])
                near |= dict.fromkeys(repeat["key"] for repeat in self._repeats[one])
                if row["claimed_by"] is not None:
                    near[row["claimed_by"]] = None
        return list(near)

    def _outcome(self, row: Row) -> Iterator[str]:
        if row["duplicate_of"] is not None or row["idempotency_key"] is None:
            return
        happened = self._effects[row["idempotency_key"]]
        if happened > 1:
            yield f"happened {happened} times"
        if row["outcome"] == "ok" and not happened:
            yield "is ok, and never happened"
        if row["effect_possible"] is False and happened:
            yield f"is an error without effect, and happened {happened} times"
        _, by_attempt, token = str(row["result"]).partition(BY_ATTEMPT)
        if by_attempt and not token.startswith(str(row["claim_token"])):
            yield f"is recorded as without effect by an attempt that had lost it: {row['result']}"

    def _undo(self, row: Row) -> Iterator[str]:
        if row["duplicate_of"] is not None or row["undoes"] is not None:
            return
        undos = sum(self._effects[one["idempotency_key"]] for one in self._undos[row["key"]])
        if undos > 1:
            yield f"was undone {undos} times"
        if row["undone_by"] is not None and undos == 0:
            yield f"says that {row['undone_by']} undid it, and was undone 0 times"
        if row["status"] == "done" and row["undone_by"] is None and undos:
            yield f"says that it stands, and was undone {undos} times"
        if row["to_undo"] and row["key"] not in self._scene.passed:
            yield "happened in a run that was undone, and nothing has undone it, or tried to"

    def _sent_after_stop(self, row: Row) -> Iterator[str]:
        """Nothing is sent after a stop has returned, also not by a sub-agent."""
        at = self._scene.stopped.get(started_run_of(row["run_key"]))
        if at is None or row["dispatched_at"] is None or row["relayed"]:
            return
        if row["dispatched_at"] > at and not row["position"].startswith(UNDO_PREFIX):
            yield "was sent after the run, or the one that called it, had been stopped"

    def _repeat(self, row: Row) -> Iterator[str]:
        if row["duplicate_of"] is None or not row["effect_possible"]:
            return
        first = self._rows[row["duplicate_of"]]
        for name in ("outcome", "effect_possible", "result", "undone_by"):
            if row[name] != first[name]:
                yield f"has {name} {row[name]}, and {first['key']}, which it repeats, {first[name]}"

    def _told(self, row: Row) -> Iterator[str]:
        told = self._scene.told.get(row["key"])
        if told is None or row["status"] != "done":
            return
        if told.outcome is not None:
            now = (row["outcome"], row["result"], row["effect_possible"])
            if now != (told.outcome.kind, told.outcome.result, told.outcome.effect_possible):
                yield f"was told as {told.outcome}, and is {now}"
            if row["undone_by"] is not None and row["settled_at"] is None:
                undo = self._rows[row["undone_by"]]
                own = _conversation(undo) == _conversation(row)
                if undo["position"].startswith("undo-") or not own:
                    yield f"was undone by {undo['key']}, and its conversation gets no notice"
        elif (told.unknown or told.accepted) and row["settled_at"] is None:
            yield "is known by now, and its conversation, which read otherwise, gets no notice"

    def _facts_stand_once(self) -> Iterator[tuple[str, str]]:
        """A business fact is true once at a time, by the order in which things happened."""
        fact_of = {
            row["idempotency_key"]: row["domain_key"]
            for row in self._rows.values()
            if row["domain_key"] is not None and row["undoes"] is None
        }
        standing: Counter[str] = Counter()
        for one in self._scene.provider.log:
            fact = fact_of.get(one.target if one.target is not None else one.key)
            if fact is None:
                continue
            standing[fact] += 1 if one.target is None else -1
            if standing[fact] not in (0, 1):
                yield fact, f"stood {standing[fact]} times after {one.key} ({one.target})"

    def _keys_are_held(self) -> Iterator[tuple[str, str]]:
        for row in self._rows.values():
            if row["domain_key"] is None or row["idempotency_key"] is None:
                continue
            stands = row["effect_possible"] is not False and row["undone_by"] is None
            held = self._facts[row["domain_key"]]["held_by"] == row["key"]
            if row["status"] == "done" and stands != held:
                yield row["key"], f"holds its business fact: {held}; it stands: {stands}"

    def _intents_end(self) -> Iterator[tuple[str, str]]:
        for key in self._scene.intents:
            row = self._rows.get(key)
            if row is None or row["outcome"] is None:
                yield key, "an application relies on it, and its outcome never ends"


def _conversation(row: Row) -> str:
    return str(row["thread_id"] or row["run_key"])
