"""D509 renaming-not-invertible."""

from __future__ import annotations

from collections.abc import Iterator

from shardlint import Examined, Facts, Finding, Phase, Rule, Section, Severity
from shardlint_rules._files import READ_FILES
from shardlint_rules._sides import side_of


class RenamingNotInvertible(Rule):
    """
    A live tensor would be saved under a name from which it is not loaded again.

    ## What it does
    Takes every renaming and conversion that the load used, reverses them as saving does, and sends every live name
    there and back over the real keys. A name that comes back as another one, or not at all, is reported.

    ## Why it is unsafe
    The checkpoint loads, and the model trains, but what it saves cannot be loaded: the tensor is missing then and
    starts from random values, or another tensor takes its place.

    ## What to do
    Correct the pattern of the renaming so that its reverse names the same tensor (anchor it, or exclude names that were
    already renamed), or write a conversion with its own reverse.
    """

    code = "D509"
    name = "renaming-not-invertible"
    phase = Phase.D5
    severity = Severity.ERROR
    needs = (Section.PLAN,)
    tags = (READ_FILES,)

    noun = "round trip"

    def check(self, facts: Facts) -> Iterator[Finding | Examined]:
        """The trips that come back are counted where they are made, and are not kept."""
        plan = facts.require(Section.PLAN)
        yield Examined(judged=max(plan.round_trips_checked, len(plan.round_trips)))
        live = plan.tensor_by_name() if plan.round_trips else {}
        for trip in plan.round_trips:
            unknown = f"would be {trip.loaded}, {side_of(facts).not_there}"
            where = f"is loaded as {trip.loaded}" if trip.loaded in live else unknown
            yield self.finding(
                subject=trip.name,
                message=f"{trip.name} (loaded from {trip.key}) is saved as {trip.saved}, which {where}",
                evidence={"key": trip.key, "saved_as": trip.saved, "loaded_as": trip.loaded},
            )
