"""Requests for jobs on their way through the head to a client, and back."""

from __future__ import annotations

import pytest

from monarch_hpc.agent.programs.submissions import Submissions
from monarch_hpc.wire.control.message import Message
from monarch_hpc.wire.control.programs import UNKNOWN, JobSubmitted, ServeJobs, SubmitJob
from monarch_hpc.wire.control.refusal import Refused

JOB = SubmitJob(0, "c2NyaXB0", "/home/alice", {"COLOUR": "blue"})


class Peer:
    def __init__(self) -> None:
        self.got: list[Message] = []

    def send(self, message: Message) -> None:
        self.got.append(message)


@pytest.fixture
def submissions() -> Submissions:
    return Submissions()


def serve(submissions: Submissions) -> Peer:
    client = Peer()
    submissions.handle(ServeJobs(), client.send)
    return client


def ask(submissions: Submissions, job: SubmitJob = JOB) -> Peer:
    asker = Peer()
    submissions.handle(job, asker.send)
    return asker


def test_the_newest_client_submits_and_each_answer_finds_its_asker(submissions: Submissions) -> None:
    older, newer = serve(submissions), serve(submissions)
    askers = [ask(submissions), ask(submissions)]
    assert not older.got
    first, second = newer.got
    assert isinstance(first, SubmitJob) and isinstance(second, SubmitJob)
    assert (first.script, first.folder, first.environment) == (JOB.script, JOB.folder, JOB.environment)
    submissions.handle(JobSubmitted(second.ticket, 0, "42\n", ""), newer.send)
    submissions.handle(JobSubmitted(first.ticket, 1, "", "no"), newer.send)
    assert askers[0].got == [JobSubmitted(0, 1, "", "no")]
    assert askers[1].got == [JobSubmitted(0, 0, "42\n", "")]


def test_without_a_client_the_asker_is_told_so(submissions: Submissions) -> None:
    gone = serve(submissions)
    submissions.forget(gone.send)
    (answer,) = ask(submissions).got
    assert isinstance(answer, Refused) and "no client is attached" in answer.problem


def test_whether_a_client_would_submit_can_be_asked_without_a_job(submissions: Submissions) -> None:
    client = serve(submissions)
    assert ask(submissions, SubmitJob(0, "", "/", {})).got == [JobSubmitted(0, 0, "", "")]
    assert not client.got


def test_the_job_of_a_client_that_is_lost_may_exist(submissions: Submissions) -> None:
    client = serve(submissions)
    asker, left = ask(submissions), ask(submissions)
    submissions.forget(left.send)
    submissions.forget(client.send)
    (answer,) = asker.got
    assert isinstance(answer, JobSubmitted) and answer.status == UNKNOWN and "is gone" in answer.errors
    assert not left.got


def test_nobody_but_the_client_that_was_asked_can_answer(submissions: Submissions) -> None:
    client, other = serve(submissions), Peer()
    asker = ask(submissions)
    (order,) = client.got
    assert isinstance(order, SubmitJob)
    for ticket in (order.ticket, 99, 0, -1):
        submissions.handle(JobSubmitted(ticket, 0, "13", ""), other.send)
    assert not asker.got
    submissions.handle(JobSubmitted(order.ticket, 0, "42", ""), client.send)
    submissions.handle(JobSubmitted(order.ticket, 0, "43", ""), client.send)
    assert asker.got == [JobSubmitted(0, 0, "42", "")]
