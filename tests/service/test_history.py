from refdraft.service.history import History


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_newest_outputs_of_a_namespace_come_first_and_no_others() -> None:
    history = History(100, 60)
    for namespace, output in (("a", [1, 2]), ("b", [3]), ("a", [4])):
        history.add(namespace, output)
    assert history.outputs("a") == [(4,), (1, 2)]
    assert history.outputs("b") == [(3,)]
    assert history.outputs("c") == []


def test_the_oldest_outputs_make_room() -> None:
    history = History(5, 60)
    for output in ([1, 2], [3, 4], [5, 6], [7] * 6, []):
        history.add("a", output)
    assert history.outputs("a") == [(5, 6), (3, 4)]
    assert History(0, 60).outputs("a") == []


def test_outputs_are_forgotten_in_time() -> None:
    clock = Clock()
    history = History(100, 60, clock)
    history.add("a", [1])
    clock.now = 50
    history.add("a", [2])
    clock.now = 61
    assert history.outputs("a") == [(2,)]
    clock.now = 200
    assert history.outputs("a") == []


def test_the_namespaces_are_bounded() -> None:
    history = History(10, 60)
    for number in range(1100):
        history.add(str(number), [number])
    assert history.outputs("0") == []
    assert history.outputs("1099") == [(1099,)]
