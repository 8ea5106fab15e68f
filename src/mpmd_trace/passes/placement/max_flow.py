"""Maximum flow by Dinic's algorithm, with capacities of any size.

Graphs are what is left of a program when everything whose place is plain has been contracted: small ones.
Source: E. A. Dinic, "Algorithm for solution of a problem of maximum flow in networks with power estimation", 1970.
"""

from __future__ import annotations

#: A capacity that no cut contains.
UNBOUNDED = 1 << 62


class FlowNetwork:
    """A directed graph with capacities; nodes are numbered from 0 on."""

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
        """An arc from `tail` to `head`."""
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
        """Return the distance of each node from the source along arcs with room; -1 where there is no way."""
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
