"""The exchange between ranks, as threads over the stores that torch offers."""

import threading
import time

import pytest
import torch.distributed as dist
from attrs import evolve

from shardlint.engine.runner import Outcome, Status
from shardlint.facts import (
    Facts,
    FrozenDict,
    LayoutFacts,
    MeshFacts,
    OwnershipFacts,
    ReductionFacts,
    ShardingFacts,
    UnitFacts,
)
from shardlint.ranks import store as exchange
from shardlint.ranks.compare import BUCKETS, bucket_of, compare_ranks, groups_of, rows_of, summary_of
from shardlint.ranks.job import Job, JobReport
from shardlint.ranks.store import JobError, RankPlace, converse, fail
from shardlint.report.model import Report, Verdict
from shardlint.rule import Finding, Phase, Severity, SubjectKind


def run_ranks(world, function, *, absent=()):
    """Run `function(place)` as every rank, on one store; what each returned or raised."""
    store = dist.HashStore()
    results = {}

    def rank(number):
        place = RankPlace(store, number, world)
        try:
            results[number] = (function(place), place)
        except Exception as error:
            results[number] = (error, place)

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(world) if number not in absent]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return results


class StoreThatCannotWait:
    """What a store can do beside waiting: a wait of torch's own that ends without the key prints two warnings."""

    def __init__(self, store):
        self.set, self.get, self.check, self.delete_key = store.set, store.get, store.check, store.delete_key


def test_a_late_rank_is_awaited_without_the_waiting_of_the_store():
    def late(place):
        if place.rank == 1:
            time.sleep(1.2)
        return echo(RankPlace(StoreThatCannotWait(place.store), place.rank, place.world_size))

    assert run_ranks(2, late)[0][0] == "hello from 0 | hello from 1"


def echo(place, timeout=5.0, message=None):
    return converse(
        place,
        message or f"hello from {place.rank}",
        lead=lambda messages, ask: " | ".join(messages),
        answer=str.upper,
        timeout=timeout,
    )


@pytest.mark.parametrize("world", [2, 4, 8])
def test_every_rank_gets_what_rank_0_made_of_all_messages(world):
    results = run_ranks(world, echo)
    wanted = " | ".join(f"hello from {rank}" for rank in range(world))
    assert [results[rank][0] for rank in range(world)] == [wanted] * world


def test_rank_0_may_ask_some_ranks_several_times():
    def talk(place):
        return converse(
            place,
            "",
            lead=lambda messages, ask: str((ask([1, 3], "more"), ask([2], "again"))),
            answer=lambda question: f"{place.rank}: {question}",
            timeout=5.0,
        )

    results = run_ranks(4, talk)
    assert {results[rank][0] for rank in range(4)} == {"({1: '1: more', 3: '3: more'}, {2: '2: again'})"}


def test_many_turns_leave_few_keys():
    store = dist.HashStore()

    def rank(number):
        place = RankPlace(store, number, 3)
        for turn in range(20):
            assert "turn 7" not in echo(place, message=f"turn {turn}") or turn == 7

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert store.num_keys() < 8  # those of the last turn


@pytest.mark.parametrize("absent", [(0,), (2,), (1, 3)])
def test_ranks_that_do_not_come_are_named_within_the_limit(absent):
    started = time.monotonic()
    results = run_ranks(4, lambda place: echo(place, timeout=1.0), absent=absent)
    assert time.monotonic() - started < 20
    for number in set(range(4)) - set(absent):
        error = results[number][0]
        assert isinstance(error, JobError)
        assert set(error.causes) == set(absent)
        assert "did not take part within 1 s" in str(error)


@pytest.mark.parametrize("culprit", [0, 2])
def test_an_error_of_one_rank_ends_all_of_them_at_once(culprit):
    def talk(place):
        if place.rank == culprit:
            fail(place, ValueError("no such layer"))
            raise ValueError("no such layer")
        return echo(place, timeout=30.0)

    started = time.monotonic()
    results = run_ranks(4, talk)
    assert time.monotonic() - started < 15
    for number in set(range(4)) - {culprit}:
        error = results[number][0]
        assert isinstance(error, JobError)
        assert error.causes == {culprit: "ValueError: no such layer"}


def test_an_error_while_leading_or_answering_is_told_to_everybody():
    def leading(messages, ask):
        raise KeyError("lost")

    results = run_ranks(2, lambda place: converse(place, "", lead=leading, answer=str, timeout=5.0))
    assert isinstance(results[0][0], KeyError)
    assert results[1][0].causes == {0: "KeyError: 'lost'"}

    def answering(question):
        raise LookupError("gone")

    results = run_ranks(
        3, lambda place: converse(place, "", lead=lambda m, ask: str(ask([2], "x")), answer=answering, timeout=5.0)
    )
    assert [results[rank][0].causes for rank in range(3)] == [{2: "LookupError: gone"}] * 3


def test_a_rank_that_missed_turns_is_told_once_and_then_in_step_again():
    gave_up, told = threading.Event(), threading.Event()

    def talk(place):
        if place.rank == 0:
            for _ in range(3):
                with pytest.raises(JobError, match="rank 1: did not take part"):
                    echo(place, timeout=0.2)
            gave_up.set()
            assert told.wait(30)
        else:
            assert gave_up.wait(30)
            with pytest.raises(JobError, match="rank 1: did not take part"):
                echo(place, timeout=20.0)
            told.set()
        return echo(place, timeout=20.0)

    results = run_ranks(2, talk)
    assert results[0][0] == results[1][0] == "hello from 0 | hello from 1"


def sharding_of(rank, world, **changes):
    names = changes.get("names", [f"layers.{i}.weight" for i in range(40)])
    mesh = MeshFacts(
        axes=("fsdp",), shape=(world,), ranks=tuple(changes.get("ranks", range(world))), coordinate=(rank,)
    )
    layout = LayoutFacts(global_shape=(8, 4), local_shape=(8 // world, 4), mesh=0)
    records = tuple(
        OwnershipFacts(fqn=name, owner="<root>", unit=0, layout=0, identity=i, dtype=changes.get(name, "float32"))
        for i, name in enumerate(names)
    )
    return ShardingFacts(
        meshes=(mesh,),
        layouts=(layout,),
        reductions=(ReductionFacts(ranks=mesh.ranks, divisor=float(world)),),
        units=(UnitFacts(name="<root>", owner="<root>", kind="fsdp2", mesh=0, reduction=0),),
        parameters=records,
    )


def test_equal_ranks_say_their_digests_and_nothing_else():
    results = run_ranks(4, lambda place: compare_ranks(place, Facts(sharding=sharding_of(place.rank, 4)), 5.0))
    assert results[0][0].compared == ((0, 1, 2, 3),)
    assert results[0][0].differences == ()
    assert results[3][1].sent < 600


def test_the_rank_that_differs_is_named_with_the_first_difference():
    def compare(place):
        changes = {"layers.7.weight": "bfloat16"} if place.rank == 2 else {}
        if place.rank == 3:
            changes["names"] = [f"layers.{i}.weight" for i in range(41)]
        return compare_ranks(place, Facts(sharding=sharding_of(place.rank, 4, **changes)), 5.0)

    results = run_ranks(4, compare)
    assert len({results[rank][0] for rank in range(4)}) == 1
    extra, dtype = sorted(results[0][0].differences, key=lambda item: item.fqn != "layers.40.weight")
    assert (extra.fqn, extra.field, extra.ranks, extra.value) == ("layers.40.weight", "present", (3,), "present")
    assert (dtype.fqn, dtype.field, dtype.ranks) == ("layers.7.weight", "dtype", (2,))
    assert (dtype.value, dtype.reference, dtype.reference_rank) == ("bfloat16", "float32", 0)
    asked = {bucket_of("layers.7.weight")}
    assert results[2][1].sent < 600 + 150 * sum(bucket_of(f"layers.{i}.weight") in asked for i in range(40))


def test_a_rank_without_a_model_is_not_compared():
    def compare(place):
        facts = Facts() if place.rank == 1 else Facts(sharding=sharding_of(place.rank, 3))
        return compare_ranks(place, facts, 5.0)

    results = run_ranks(3, compare)
    for ranks, _ in results.values():
        assert ranks.differences == ()
        assert ranks.compared == ((0, 2),)


def test_pipeline_stages_are_not_compared_with_each_other():
    def compare(place):
        stage = place.rank // 2
        names = [f"layers.{stage}.weight"]
        facts = sharding_of(place.rank, 2, names=names, ranks=(2 * stage, 2 * stage + 1))
        return compare_ranks(place, Facts(sharding=facts), 5.0)

    results = run_ranks(4, compare)
    assert results[0][0].compared == ((0, 1), (2, 3))
    assert results[0][0].differences == ()


def test_a_difference_inside_a_later_stage_is_found_without_rank_0():
    def compare(place):
        stage = place.rank // 2
        changes = {"layers.0.weight": "float16"} if place.rank == 3 else {}
        facts = sharding_of(place.rank, 2, ranks=(2 * stage, 2 * stage + 1), **changes)
        return compare_ranks(place, Facts(sharding=facts), 5.0)

    (difference,) = run_ranks(4, compare)[0][0].differences
    assert (difference.ranks, difference.reference_rank, difference.value) == ((3,), 2, "float16")


def test_groups_follow_shared_ranks():
    assert groups_of([[0, 1], [1], [2, 3], [3]]) == [[0, 1], [2, 3]]
    assert groups_of([[0, 2], [1, 3], [2], [3, 0]]) == [[0, 1, 2, 3]]


def test_digests_do_not_depend_on_the_order_of_units():
    facts = sharding_of(0, 2)
    records = [evolve(record, unit=index % 2) for index, record in enumerate(facts.parameters)]
    facts = evolve(facts, units=facts.units * 2, parameters=tuple(records))
    turned = evolve(facts, parameters=tuple(records[1::2] + records[::2]))
    left, right = (summary_of(item, rows_of(item), 0) for item in (facts, turned))
    assert left == right
    assert len(left.digests) == BUCKETS


def test_parameters_of_a_unit_in_another_order_are_a_difference():
    names = [f"layers.{i}.weight" for i in range(40)]
    swapped = [*names[:2], names[3], names[2], *names[4:]]

    def compare(place):
        facts = sharding_of(place.rank, 3, names=swapped if place.rank == 1 else names)
        return compare_ranks(place, Facts(sharding=facts), 5.0)

    found = run_ranks(3, compare)[0][0].differences
    assert [(item.fqn, item.field, item.ranks, item.reference, item.value) for item in found] == [
        ("layers.2.weight", "place_in_unit", (1,), "2", "3"),
        ("layers.3.weight", "place_in_unit", (1,), "3", "2"),
    ]


def test_a_parameter_too_many_is_one_difference_though_it_moves_the_others():
    names = [f"layers.{i}.weight" for i in range(40)]

    def compare(place):
        facts = sharding_of(place.rank, 2, names=["first.weight", *names] if place.rank == 1 else names)
        return compare_ranks(place, Facts(sharding=facts), 5.0)

    (difference,) = run_ranks(2, compare)[0][0].differences
    assert (difference.fqn, difference.field) == ("first.weight", "present")


def finding(subject, message="wrong"):
    return Finding(
        code="D304",
        name="unmanaged-trainable-parameter",
        phase=Phase.D3,
        severity=Severity.ERROR,
        subject=subject,
        kind=SubjectKind.TENSOR,
        message=message,
        evidence={"a": (1, 2)},
        why="w",
        remediation="r",
    )


def report(*findings, status=Status.CLEAN, reason="", blocked=()):
    outcome = Outcome(code="D304", name="x", phase=Phase.D3, status=status, reason=reason, seconds=0.1)
    verdict = Verdict.BLOCKED if blocked else Verdict.FAIL if findings else Verdict.PASS
    return Report(verdict=verdict, findings=findings, outcomes=(outcome,), blocked_by=blocked, metadata=FrozenDict(a=1))


def test_reports_become_one_whose_findings_name_their_ranks():
    def agree(place):
        here = [finding("shared", f"seen on {place.rank}")]
        if place.rank == 2:
            here.append(finding("mine"))
        return Job(place, 5.0).agree(report(*here, status=Status.FOUND))

    results = run_ranks(4, agree)
    assert len({results[rank][0] for rank in range(4)}) == 1
    joint = results[3][0]
    assert [(item.subject, item.ranks, item.message) for item in joint.findings] == [
        ("mine", (2,), "wrong"),
        ("shared", (), "seen on 0"),
    ]
    assert joint.exit_status == 1
    assert joint.outcomes[0].findings == 2


def test_one_rank_that_fails_gives_every_rank_its_exit_status():
    joint = run_ranks(4, lambda place: Job(place, 5.0).agree(report(*([finding("x")] if place.rank == 3 else []))))
    assert [joint[rank][0].exit_status for rank in range(4)] == [1] * 4


def test_a_rule_that_one_rank_could_not_evaluate_is_no_clean_rule():
    def agree(place):
        lost = place.rank == 1
        status = Status.NOT_EVALUATED if lost else Status.CLEAN
        mine = report(status=status, reason="no mesh" if lost else "", blocked=("not trusted",) if lost else ())
        return Job(place, 5.0).agree(mine)

    joint = run_ranks(2, agree)[0][0]
    assert joint.outcomes[0].status is Status.NOT_EVALUATED
    assert joint.outcomes[0].reason == "rank 1: no mesh"
    assert joint.blocked_by == ("rank 1: not trusted",)
    assert joint.exit_status == 2


def test_no_rank_leaves_before_the_report_is_written():
    order, last = [], threading.Event()

    def function(place):
        def write():
            last.wait(0.5)  # a rank that did not wait would set this at once
            order.append("written")

        report = Report(verdict=Verdict.FAIL)
        JobReport(report, place.rank == 0, Job(place, 30.0)).show(write)
        order.append(f"rank {place.rank} left")
        last.set()

    run_ranks(3, function)
    assert order[0] == "written"
    assert sorted(order[1:]) == ["rank 0 left", "rank 1 left", "rank 2 left"]


def test_a_report_that_cannot_be_written_ends_every_rank():
    def function(place):
        def write():
            raise OSError("no space left")

        JobReport(Report(verdict=Verdict.PASS), place.rank == 0, Job(place, 5.0)).show(write)

    results = run_ranks(2, function)
    assert isinstance(results[0][0], OSError)
    assert isinstance(results[1][0], JobError)


@pytest.mark.parametrize("lost", [0, 2])
def test_a_rank_that_was_given_up_before_is_hardly_waited_for_and_only_once(monkeypatch, lost):
    monkeypatch.setattr("shardlint.ranks.store._GONE_SECONDS", 0.3)
    present = {}

    def function(place):
        place.gone[lost] = "it died while it read"
        present[place.rank] = place
        return echo(place, timeout=600.0)  # joining the threads would fail long before

    for error, place in run_ranks(3, function, absent=(lost,)).values():
        assert isinstance(error, JobError)
        assert error.causes == {lost: "it died while it read"}
        assert place.gone == {}
    assert set(present) == {0, 1, 2} - {lost}


def test_the_place_that_was_joined_is_found_again_and_never_waited_for(monkeypatch):
    place = RankPlace(dist.HashStore(), 1, 2)
    monkeypatch.setattr(exchange, "_places", {})
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert exchange.joined_place() is None
    exchange._places[0] = place
    assert exchange.joined_place() is place
    exchange.expect_no_more(1, "this rank itself")
    exchange.expect_no_more(0, "it died")
    assert place.gone == {0: "it died"}
