"""The cheapest labeling of a hypergraph some of whose nodes have their labels: a multiway cut.

Nodes are what has to be placed, labels are meshes, an edge is a value with its producer and its consumers, and
costs its weight for each label at it but one: a value is sent once to each other mesh that wants it.

What is forced is contracted first, which keeps an optimum: a node joins another one when at least as much ties it
to that one alone as ties it to edges where that one is not, and a cluster of heavy edges joins the one label in it as
far as every part of it that stayed away would cost more.  What is left falls into parts.  A part at one label
takes it.  A part at two labels is a minimum cut between them, found by one maximum flow: exact.  For more labels,
alpha-expansion: in turn, each label takes whatever makes the cost smallest, which is a maximum flow again, until
no label gains.  Then the cost is at most twice the optimum where values have one consumer
(`docs/placement_algorithm.md`).
Source: Y. Boykov, O. Veksler, R. Zabih, "Fast approximate energy minimization via graph cuts", 2001; E. Dahlhaus et
al., "The complexity of multiterminal cuts", 1994.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Sequence

#: A capacity that no cut contains.
UNBOUNDED = 1 << 62


class FlowNetwork:
    """A directed graph with capacities of any size; nodes are numbered from 0 on.

    Maximum flow by Dinic's algorithm.  Graphs are what is left of a program when everything whose place is plain has
    been contracted: small ones.  Source: E. A. Dinic, "Algorithm for solution of a problem of maximum flow in networks
    with power estimation", 1970.
    """

    def __init__(self, nodes: int) -> None:
        self._arcs: list[list[int]] = [[] for _ in range(nodes)]
        #: Arc `i` and its reverse `i ^ 1`: where they lead, and what they can still take.
        self._head: list[int] = []
        self._left: list[int] = []

    def add_node(self) -> int:
        """Return a new node."""
        self._arcs.append([])
        return len(self._arcs) - 1

    def add_arc(self, tail: int, head: int, capacity: int) -> None:
        """Add an arc from `tail` to `head`."""
        for node, target, room in ((tail, head, capacity), (head, tail, 0)):
            self._arcs[node].append(len(self._head))
            self._head.append(target)
            self._left.append(room)

    def sink_side(self, source: int, sink: int) -> list[bool]:
        """For each node whether it is on the sink's side of the minimum cut whose sink side is smallest."""
        while (levels := self._levels(source, sink))[sink] >= 0:
            self._block(source, sink, levels)
        reaches = [False] * len(self._arcs)
        reaches[sink] = True
        stack = [sink]
        while stack:
            for arc in self._arcs[stack.pop()]:
                tail = self._head[arc]
                if not reaches[tail] and self._left[arc ^ 1]:
                    reaches[tail] = True
                    stack.append(tail)
        return reaches

    def _levels(self, source: int, sink: int) -> list[int]:
        """Return the distance of each node from the source along arcs with capacity left; -1 where there is no path."""
        levels = [-1] * len(self._arcs)
        levels[source] = 0
        frontier = [source]
        while frontier and levels[sink] < 0:
            following = []
            for node in frontier:
                for arc in self._arcs[node]:
                    head = self._head[arc]
                    if self._left[arc] and levels[head] < 0:
                        levels[head] = levels[node] + 1
                        following.append(head)
            frontier = following
        return levels

    def _block(self, source: int, sink: int, levels: list[int]) -> None:
        """Send flow along shortest ways until each has a full arc."""
        following = [0] * len(self._arcs)
        path: list[int] = []
        node = source
        while True:
            if node == sink:
                room = min(self._left[arc] for arc in path)
                full = len(path)
                for i, arc in enumerate(path):
                    self._left[arc] -= room
                    self._left[arc ^ 1] += room
                    if not self._left[arc]:
                        full = min(full, i)
                node = self._head[path[full] ^ 1]
                del path[full:]
                continue
            arcs = self._arcs[node]
            while following[node] < len(arcs):
                arc = arcs[following[node]]
                if self._left[arc] and levels[self._head[arc]] == levels[node] + 1:
                    path.append(arc)
                    node = self._head[arc]
                    break
                following[node] += 1
            else:
                if not path:
                    return
                node = self._head[path.pop() ^ 1]
                following[node] += 1


#: Pins of edges up to this size are looked at again when the edge has changed.
_SMALL = 4
#: Heavy edges have more than the smallest weight times a power of this.
_HEAVIER = 8

Edge = tuple[int, Sequence[int]]


def cost(edges: Iterable[Edge], labels: Sequence[int]) -> int:
    """Return the sum over edges (weight, nodes) of the weight times the number of labels at the edge less one."""
    return sum(weight * (len({labels[node] for node in nodes}) - 1) for weight, nodes in edges if nodes)


def cut(nodes: int, labels: int, edges: Iterable[Edge]) -> list[int]:
    """Return a label for each node; nodes 0 .. `labels` - 1 have their own number, nodes that nothing ties get label 0.

    Args:
        nodes: how many there are.
        labels: how many of them have a label.
        edges: a weight from 0 on, and the nodes at the edge.
    """
    graph = _Contraction(nodes, labels, edges)
    graph.contract(range(labels, nodes))
    graph.join_clusters()
    assignment = list(range(labels)) + [0] * (nodes - labels)
    for part in graph.parts():
        _label_part(part, graph, assignment)
    return [assignment[graph.root(node)] for node in range(nodes)]


class _Contraction:
    """The hypergraph, in which nodes become one."""

    def __init__(self, nodes: int, labels: int, edges: Iterable[Edge]) -> None:
        self.labels = labels
        self.parent = list(range(nodes))
        self.weights: list[int] = []
        self.pins: list[dict[int, None]] = []
        #: How many of the pins have no label.
        self.free: list[int] = []
        #: The edges at each free node.
        self.at: list[dict[int, None]] = [{} for _ in range(nodes)]
        for weight, pins in edges:
            distinct = dict.fromkeys(pins)
            loose = [pin for pin in distinct if pin >= labels]
            if weight <= 0 or len(distinct) < 2 or self._settled(len(loose), len(distinct)):
                continue
            self.free.append(len(loose))
            for pin in loose:
                self.at[pin][len(self.weights)] = None
            self.weights.append(weight)
            self.pins.append(distinct)

    def _settled(self, free: int, pins: int) -> bool:
        """Return whether the cost of an edge is the same wherever its free pins go."""
        return not free or pins - free == self.labels or pins == 1

    def root(self, node: int) -> int:
        """Return the node that stands for this one."""
        result = node
        while self.parent[result] != result:
            result = self.parent[result]
        while self.parent[node] != result:
            self.parent[node], node = result, self.parent[node]
        return result

    def contract(self, nodes: Iterable[int]) -> None:
        """Join these nodes, and those for which that may matter, as long as that is known to keep an optimum."""
        waiting = deque(nodes)
        queued = set(waiting)
        while waiting:
            node = waiting.popleft()
            queued.discard(node)
            if self.parent[node] != node:
                continue
            other = self._forced(node)
            if other is None:
                continue
            for again in self._join(node, other):
                if again not in queued:
                    queued.add(again)
                    waiting.append(again)

    def _forced(self, node: int) -> int | None:
        """Return a node that shares the label of this one in some optimum, if that is plain."""
        at = self.at[node]
        if not at:
            return None
        weights, pins_of = self.weights, self.pins
        whole = 0
        alone: dict[int, int] = {}
        for edge in at:
            weight, pins = weights[edge], pins_of[edge]
            whole += weight
            if len(pins) == 2:
                first, second = pins
                other = second if first == node else first
                alone[other] = alone.get(other, 0) + weight
        for other in sorted(alone):  # where several serve, the first label
            weight = alone[other]
            elsewhere = whole - weight
            if weight < elsewhere:
                for edge in at:
                    if other in pins_of[edge] and len(pins_of[edge]) > 2:
                        elsewhere -= weights[edge]
            if weight >= elsewhere:
                return other
        if alone or len(at) > 1:
            return None
        others = [pin for pin in self.pins[next(iter(at))] if pin != node]
        return min(others)  # a label if there is one

    def _join(self, node: int, other: int) -> list[int]:
        """Make `node` part of `other`; gives the free nodes for which that may matter."""
        if other >= self.labels and len(self.at[other]) < len(self.at[node]):
            node, other = other, node
        self.parent[node] = other
        touched: dict[int, None] = {other: None} if other >= self.labels else {}
        for edge in self.at[node]:
            pins = self.pins[edge]
            del pins[node]
            if other < self.labels or other in pins:
                self.free[edge] -= 1
            pins[other] = None
            if self._settled(self.free[edge], len(pins)):
                for pin in pins:
                    if pin >= self.labels:
                        self.at[pin].pop(edge, None)
                        touched[pin] = None
                continue
            if other >= self.labels:
                self.at[other][edge] = None
            if len(pins) <= _SMALL:
                touched.update((pin, None) for pin in pins if pin >= self.labels)
        self.at[node] = {}
        return list(touched)

    def join_clusters(self) -> None:
        """Join with a label what heavy edges tie to it and to no other one.

        Such a cluster is what belongs to one weight in the update of an optimizer: an array that several ops read ties
        none of them to the mesh alone, and scalars tie all of them to the updates of the other meshes.
        """
        limit = min((self.weights[edge] for at in self.at for edge in at), default=0)
        while parts := self.parts(limit):
            for part in parts:
                at = dict.fromkeys(edge for node in part for edge in self.at[node])
                heavy = [edge for edge in at if self.weights[edge] > limit]
                pinned = {pin for edge in heavy for pin in self.pins[edge] if pin < self.labels}
                if len(pinned) == 1 and len(heavy) < len(at):
                    label = pinned.pop()
                    touched: dict[int, None] = {}
                    for node in self._tied(label, part, at):
                        touched.update(dict.fromkeys(self._join(node, label)))
                    self.contract([node for node in touched if self.parent[node] == node])
            limit *= _HEAVIER

    def _tied(self, label: int, part: Iterable[int], at: Iterable[int]) -> list[int]:
        """Return the nodes of the part that have the label in every optimum, however the others are labeled.

        They are the smallest set that, joined with the label, has the lightest edges to everything else.  Giving the
        label to those of a labeling that have another one saves more than it costs, as both sets of edges are
        submodular: were that not so, those that have it already would be a set no heavier.
        """
        number = {node: i + 2 for i, node in enumerate(node for node in part if self.parent[node] == node)}
        network = FlowNetwork(len(number) + 2)
        for edge in at:
            inside = [number[pin] for pin in self.pins[edge] if pin in number]
            outside = any(pin not in number and pin != label for pin in self.pins[edge])
            if not inside or (outside and label in self.pins[edge]):
                continue
            if outside or label in self.pins[edge]:
                _any(network, inside, self.weights[edge], to_sink=not outside)
            else:
                _cut(network, inside, self.weights[edge])
        taken = network.sink_side(0, 1)
        return [node for node in number if taken[number[node]]]

    def parts(self, limit: int = 0) -> list[list[int]]:
        """Return the free nodes in groups that no edge above the limit connects except through nodes with a label."""
        seen: set[int] = set()
        result = []
        for start in range(self.labels, len(self.parent)):
            if start in seen or all(self.weights[edge] <= limit for edge in self.at[start]):
                continue
            seen.add(start)
            part, walked, stack = [], set[int](), [start]
            while stack:
                node = stack.pop()
                part.append(node)
                for edge in self.at[node]:
                    if edge in walked or self.weights[edge] <= limit:
                        continue
                    walked.add(edge)
                    for pin in self.pins[edge]:
                        if pin >= self.labels and pin not in seen:
                            seen.add(pin)
                            stack.append(pin)
            result.append(sorted(part))
        return result


def _label_part(part: list[int], graph: _Contraction, assignment: list[int]) -> None:
    """Label nodes that nothing but labels ties to others."""
    numbers = dict.fromkeys(edge for node in part for edge in graph.at[node])
    edges = [(graph.weights[edge], list(graph.pins[edge])) for edge in numbers]
    labels = sorted({pin for _, pins in edges for pin in pins if pin < graph.labels})
    for node in part:
        assignment[node] = labels[0] if labels else 0
    best, since = cost(edges, assignment), 0
    for label in itertools.cycle(labels[1:] if len(labels) == 2 else labels):
        if since == len(labels):
            return
        before = {node: assignment[node] for node in _expansion(label, part, edges, assignment)}
        for node in before:
            assignment[node] = label
        now = cost(edges, assignment)
        if now < best:
            best, since = now, 0
            if len(labels) == 2:  # the second label has taken the best there is
                return
        else:
            since += 1
            for node, old in before.items():
                assignment[node] = old


def _expansion(label: int, part: list[int], edges: Sequence[Edge], assignment: Sequence[int]) -> list[int]:
    """Return the nodes that take `label` in the cheapest labeling in which each node keeps its label or takes that one.

    The sink's side takes it.  An edge pays for `label` when one of its nodes has it, and for another label as long
    as one of its nodes keeps that one.
    """
    free = [node for node in part if assignment[node] != label]
    number = {node: i + 2 for i, node in enumerate(free)}
    network = FlowNetwork(len(free) + 2)
    for weight, pins in edges:
        keeping: dict[int, list[int]] = {}
        moving = True
        for pin in pins:
            if assignment[pin] == label:
                moving = False
            elif pin in number:
                keeping.setdefault(assignment[pin], []).append(number[pin])
        movable = [node for nodes in keeping.values() for node in nodes]
        if moving and movable:
            _any(network, movable, weight, to_sink=False)
        for old, nodes in keeping.items():
            if old not in pins:
                _any(network, nodes, weight, to_sink=True)
    taken = network.sink_side(0, 1)
    return [node for node in free if taken[number[node]]]


def _any(network: FlowNetwork, nodes: Sequence[int], weight: int, *, to_sink: bool) -> None:
    """Pay the weight when one of the nodes is on the source's side (`to_sink`), or on the sink's."""
    if len(nodes) == 1:
        gate = nodes[0]
    else:
        gate = network.add_node()
        for node in nodes:
            network.add_arc(*((node, gate) if to_sink else (gate, node)), UNBOUNDED)
    network.add_arc(*((gate, 1) if to_sink else (0, gate)), weight)


def _cut(network: FlowNetwork, nodes: Sequence[int], weight: int) -> None:
    """Pay the weight when one of the nodes is on the source's side and another one on the sink's."""
    before, after = network.add_node(), network.add_node()
    network.add_arc(before, after, weight)
    for node in nodes:
        network.add_arc(node, before, UNBOUNDED)
        network.add_arc(after, node, UNBOUNDED)
