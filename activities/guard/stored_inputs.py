"""The arguments of a call with the results that the ledger keeps for it: of a plan's step."""

from __future__ import annotations

from collections.abc import Sequence

from ...canonical import Json, dumps, parse
from ...errors import InvalidArguments, UnrepresentableValue
from ...identity import ActionKey
from ...ledger import ActionLedger
from ..contract.references import StoredInput, part_of, put_in


async def with_inputs(ledger: ActionLedger, arguments: str, inputs: Sequence[StoredInput]) -> str:
    """Return arguments (JSON text) with what the ledger adds to them. It only reads.

    Raises:
        InvalidArguments: A result is not there, or lacks the part that is referred to.
    """
    if not inputs:
        return arguments
    whole, results = parse(arguments), dict[ActionKey, Json]()
    try:
        for one in inputs:
            if one.key not in results:
                results[one.key] = await _result(ledger, one)
            put_in(whole, one.reference, part_of(results[one.key], one.reference))
        return dumps(whole)
    except (LookupError, TypeError, UnrepresentableValue) as err:
        raise InvalidArguments(f"its arguments cannot be made: {err.args[0]}") from err


async def _result(ledger: ActionLedger, one: StoredInput) -> Json:
    kept = await ledger.result_of(one.key)
    if kept is None:
        raise LookupError(f"the ledger has no result of {one.reference.step!r} ({one.key})")
    return parse(kept)
