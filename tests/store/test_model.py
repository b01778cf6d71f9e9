"""Random questions to the machine, beside a model that is too simple to be wrong."""

from collections import defaultdict, deque

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.machine import Tick
from holdfast.store.machine import Asked, PeerGone, SpaceDropped, StoreMachine
from holdfast.store.messages import (
    Fault,
    StoreAdd,
    StoreAppend,
    StoreCheck,
    StoreCompareSet,
    StoreDelete,
    StoreDone,
    StoreFailed,
    StoreGet,
    StoreHello,
    StoreKeys,
    StoreListKeys,
    StoreMultiGet,
    StoreMultiSet,
    StoreNumber,
    StoreNumKeys,
    StoreQueueLen,
    StoreQueuePop,
    StoreQueuePush,
    StoreSet,
    StoreValue,
    StoreValues,
    StoreWait,
)

SPACES = st.sampled_from(["run/1", "run/2"])
KEYS = st.sampled_from(["a", "b", "c"])
VALUES = st.sampled_from([b"", b"1", b"-7", b"x"])
TIMEOUTS = st.sampled_from([0.0, 1.0, 3.0])
LISTS = st.lists(KEYS, max_size=4)

QUESTIONS = st.one_of(
    st.tuples(st.just(StoreGet), SPACES, KEYS, TIMEOUTS),
    st.tuples(st.just(StoreMultiGet), SPACES, LISTS, TIMEOUTS),
    st.tuples(st.just(StoreWait), SPACES, LISTS, TIMEOUTS),
    st.tuples(st.just(StoreQueuePop), SPACES, KEYS, TIMEOUTS),
    st.tuples(st.just(StoreCheck), SPACES, LISTS),
    st.tuples(st.just(StoreNumKeys), SPACES, st.sampled_from(["", "a"])),
    st.tuples(st.just(StoreListKeys), SPACES, st.sampled_from(["", "a"])),
    st.tuples(st.just(StoreQueueLen), SPACES, KEYS),
    st.tuples(st.just(StoreSet), SPACES, KEYS, VALUES),
    st.tuples(st.just(StoreMultiSet), SPACES, LISTS, st.just(b"m")),
    st.tuples(st.just(StoreAdd), SPACES, KEYS, st.integers(-3, 3)),
    st.tuples(st.just(StoreCompareSet), SPACES, KEYS, VALUES, VALUES),
    st.tuples(st.just(StoreAppend), SPACES, KEYS, VALUES),
    st.tuples(st.just(StoreDelete), SPACES, KEYS),
    st.tuples(st.just(StoreQueuePush), SPACES, KEYS, VALUES),
)
PEERS = st.integers(0, 3)
STEPS = st.one_of(
    st.tuples(st.just("ask"), PEERS, QUESTIONS),
    st.tuples(st.just("ask"), PEERS, QUESTIONS),
    st.tuples(st.just("ask again"), PEERS),
    st.tuples(st.just("lose"), PEERS),
    st.tuples(st.just("pass"), st.sampled_from([0.5, 1.0, 2.0])),
    st.tuples(st.just("drop"), st.sampled_from(["run/", "run/2", "none"])),
)


class Model:
    """Plain dicts, and a list of who waits that is searched from the start every time."""

    def __init__(self):
        self.now = 0.0
        self.values = defaultdict(dict)
        self.queues = defaultdict(lambda: defaultdict(deque))
        self.waiting = []  # (peer, question, deadline), in the order they came

    def ask(self, peer, question):
        """Return the answers, as (peer, reply)."""
        reply = self.waited(question) if hasattr(question, "timeout_s") else self.direct(question)
        if reply is not None:
            return [(peer, reply), *self.woken()]
        if question.timeout_s <= 0:
            return [(peer, Fault.TIMEOUT)]
        self.waiting.append((peer, question, self.now + question.timeout_s))
        return []

    def woken(self):
        answers = []
        for entry in list(self.waiting):
            reply = self.waited(entry[1])
            if reply is not None:
                self.waiting.remove(entry)
                answers.append((entry[0], reply))
        return answers

    def tick(self):
        late = [entry for entry in self.waiting if entry[2] <= self.now]
        self.waiting = [entry for entry in self.waiting if entry[2] > self.now]
        return [(peer, Fault.TIMEOUT) for peer, _, _ in late]

    def drop(self, prefix):
        dropped = [entry for entry in self.waiting if entry[1].space.startswith(prefix)]
        self.waiting = [entry for entry in self.waiting if not entry[1].space.startswith(prefix)]
        for space in ("run/1", "run/2"):
            if space.startswith(prefix):
                self.values.pop(space, None)
                self.queues.pop(space, None)
        return [(peer, Fault.DROPPED) for peer, _, _ in dropped]

    def lose(self, peer):
        self.waiting = [entry for entry in self.waiting if entry[0] != peer]

    def there(self, space, key):
        return key in self.values[space] or bool(self.queues[space][key])

    def waited(self, ask):
        values, queues = self.values[ask.space], self.queues[ask.space]
        match ask:
            case StoreGet(id=id_, key=key):
                return StoreValue(id_, values[key]) if key in values else None
            case StoreMultiGet(id=id_, keys=keys):
                return StoreValues(id_, [values[k] for k in keys]) if all(k in values for k in keys) else None
            case StoreWait(id=id_, keys=keys):
                return StoreDone(id_) if all(self.there(ask.space, key) for key in keys) else None
            case StoreQueuePop(id=id_, key=key):
                return StoreValue(id_, queues[key].popleft()) if queues[key] else None

    def direct(self, ask):
        values, queues = self.values[ask.space], self.queues[ask.space]
        match ask:
            case StoreCheck(keys=keys):
                return StoreNumber(ask.id, int(all(self.there(ask.space, key) for key in keys)))
            case StoreNumKeys(prefix=prefix):
                return StoreNumber(ask.id, sum(key.startswith(prefix) for key in values))
            case StoreListKeys(prefix=prefix):
                return StoreKeys(ask.id, [key for key in values if key.startswith(prefix)])
            case StoreQueueLen(key=key):
                return StoreNumber(ask.id, len(queues[key]))
            case StoreSet(key=key, value=value):
                values[key] = value
            case StoreMultiSet(keys=keys):
                values.update(zip(keys, ask.values, strict=True))
            case StoreAdd(key=key, amount=amount):
                if values.get(key) in (b"", b"x") or (values.get(key) or b"").strip(b"-0123456789"):
                    return Fault.USAGE
                try:
                    number = int(values.get(key, b"0")) + amount
                except ValueError:
                    return Fault.USAGE
                values[key] = str(number).encode()
                return StoreNumber(ask.id, number)
            case StoreCompareSet(key=key, expected=expected, desired=desired):
                if values.get(key, b"") == expected:
                    values[key] = desired
                return StoreValue(ask.id, values.get(key, expected))
            case StoreAppend(key=key, value=value):
                values[key] = values.get(key, b"") + value
            case StoreDelete(key=key):
                return StoreNumber(ask.id, int(values.pop(key, None) is not None))
            case StoreQueuePush(key=key, value=value):
                queues[key].append(value)
        return StoreDone(ask.id)


WRITES = (StoreSet, StoreMultiSet, StoreAdd, StoreCompareSet, StoreAppend, StoreDelete, StoreQueuePush)


def plain(answers):
    """Return answers as the model gives them: a refusal is only its fault."""
    shown = [
        (answer.peer[0], answer.reply.fault if isinstance(answer.reply, StoreFailed) else answer.reply)
        for answer in answers
    ]
    return shown[:1] + sorted(shown[1:], key=repr)


def sorted_tail(answers):
    return answers[:1] + sorted(answers[1:], key=repr)


@settings(max_examples=400, deadline=None)
@given(st.lists(STEPS, max_size=60))
def test_the_machine_does_what_the_model_does(steps):
    machine, model = StoreMachine("e"), Model()
    ids, connections = [0] * 4, [0] * 4
    last: list[tuple[object, object] | None] = [None] * 4

    def connect(number):
        machine.handle(Asked((number, connections[number]), StoreHello(f"line {number}")), model.now)

    for number in range(4):
        connect(number)
    for step in steps:
        match step:
            case "ask", number, (kind, *fields):
                if any(peer == number for peer, _, _ in model.waiting):
                    continue
                ids[number] += 1
                if kind is StoreMultiSet:
                    fields[2] = [fields[2]] * len(fields[1])
                question = kind(ids[number], *fields)
                answers = machine.handle(Asked((number, connections[number]), question), model.now)
                expected = model.ask(number, question)
                assert plain(answers) == sorted_tail(expected)
                last[number] = (question, answers[0].reply) if isinstance(question, WRITES) else None
            case "ask again", number:
                if last[number] is None:
                    continue
                question, reply = last[number]
                answers = machine.handle(Asked((number, connections[number]), question), model.now)
                assert [answer.reply for answer in answers] == [reply]
            case "lose", number:
                machine.handle(PeerGone((number, connections[number])), model.now)
                model.lose(number)
                connections[number] += 1
                connect(number)
            case "pass", seconds:
                model.now += seconds
                answers = machine.handle(Tick(), model.now)
                assert sorted(plain(answers), key=repr) == sorted(model.tick(), key=repr)
            case "drop", prefix:
                answers = machine.handle(SpaceDropped(prefix), model.now)
                assert sorted(plain(answers), key=repr) == sorted(model.drop(prefix), key=repr)
        machine.check()
        wakeup = min((deadline for _, _, deadline in model.waiting), default=None)
        assert machine.wakeup() == wakeup
