"""Draws the charts of the report as inline SVG.

Colours and fonts are the page's (CSS classes `c0` ... `c7`), so charts follow its light and dark look.  Colour alone
never distinguishes: series differ in their dashes too, points in their shapes.  All text is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

WIDTH, HEIGHT = 440, 300  # at the width of a phone, text of 13 pixels shrinks to no less than 10
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 14, 12, 44
COLOURS = 7  # `c0` ... `c6`; a further series repeats them with the next dash
DASHES = ("", "7 4", "2 3", "10 3 2 3")
LOG_FROM = 4.0  # a range of speedups wider than this is easier to read on a logarithmic axis

_NODE_WIDTH, _NODE_HEIGHT, _GAP_X, _GAP_Y = 128, 44, 16, 34


@dataclass(frozen=True)
class Axis:
    """Values to pixels.  A logarithmic axis takes positive values only."""

    low: float
    high: float
    first_px: float
    last_px: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = (
            (math.log(v) for v in (self.low, self.high, value)) if self.log else (self.low, self.high, value)
        )
        return self.first_px + (at - low) / (high - low) * (self.last_px - self.first_px)

    def ticks(self, wanted: int = 5) -> list[float]:
        """Round values in the range, about `wanted` of them."""
        if self.log:
            decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            for digits in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7)):
                found = [d * 10.0**k for k in decades for d in digits if self.low <= d * 10.0**k <= self.high]
                if len(found) >= wanted - 1:
                    break
            return found[:: math.ceil(len(found) / (2 * wanted))]
        rough = (self.high - self.low) / wanted
        unit = 10.0 ** math.floor(math.log10(rough))
        step = next(unit * d for d in (1, 2, 5, 10) if unit * d >= rough)
        first = math.ceil(self.low / step - 1e-9)
        return [step * k for k in range(first, math.floor(self.high / step + 1e-9) + 1)]


def axis(values: Sequence[float], first_px: float, last_px: float, *, log: bool | None = None) -> Axis:
    """An axis that holds `values` with a little room; without `log` it is logarithmic if they span much."""
    low, high = min(values), max(values)
    if log is None:
        log = low > 0 and high / low > LOG_FROM
    if log:
        room = max((high / low) ** 0.06, 1.05)
        return Axis(low / room, high * room, first_px, last_px, True)
    room = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    return Axis(low - room, high + room, first_px, last_px)


def number(value: float) -> str:
    """A short number for a tick."""
    if value and (abs(value) >= 1e5 or abs(value) < 1e-3):
        return f"{value:.0e}".replace("e+0", "e").replace("e-0", "e-")
    return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"


# --- best so far -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """A step of the curve: from `x` on the best is `y`, with its interval."""

    x: float
    y: float
    low: float
    high: float
    note: str = ""


@dataclass(frozen=True)
class Series:
    """Steps in the order of `x`; the last holds to `end`."""

    name: str
    steps: Sequence[Step]
    end: float
    kind: str = "measured"  # or "estimated", "mixed"
    dots: Sequence[tuple[float, float]] = field(default_factory=tuple)  # single candidates behind the line


def best_so_far(series: Sequence[Series], x_label: str, baseline: str = "the seed") -> Markup:
    """A line in steps with its interval for each of `series`.  baseline: what speedups are over."""
    drawn = [s for s in series if s.steps]
    spread = [v for s in drawn for step in s.steps for v in (step.low, step.high)] + [1.0]
    spread += [y for s in drawn for _, y in s.dots]
    x = Axis(0.0, max([s.end for s in drawn] + [1e-9]), _LEFT, WIDTH - _RIGHT)
    y = axis(spread, HEIGHT - _BOTTOM, _TOP)
    body = [_frame(x, y, x_label, f"speedup over {baseline}", suffix="×"), _level(y, 1.0)]
    for place, one in enumerate(drawn):
        body.append(_dots(one, place, x, y))
        body.append(_steps(one, place, x, y))
    kind = ", ".join(sorted({one.kind for one in drawn}))
    title = f"Best speedup so far ({kind}) over {x_label}: " + "; ".join(
        f"{one.name} ends at {one.steps[-1].y:.2f}×" for one in drawn
    )
    return _svg(WIDTH, HEIGHT, title, body)


def _steps(one: Series, place: int, x: Axis, y: Axis) -> Markup:
    corners, upper, lower = [], [], []
    ends = [step.x for step in one.steps[1:]] + [one.end]
    for step, end in zip(one.steps, ends, strict=True):
        for at in (step.x, end):
            corners.append(f"{x(at):.1f},{y(step.y):.1f}")
            upper.append(f"{x(at):.1f},{y(step.high):.1f}")
            lower.append(f"{x(at):.1f},{y(step.low):.1f}")
    marks = Markup("").join(
        Markup('<circle class="f{}" cx="{:.1f}" cy="{:.1f}" r="3.5"><title>{}</title></circle>').format(
            place % COLOURS, x(step.x), y(step.y), step.note
        )
        for step in one.steps
    )
    return Markup(
        '<polygon class="band f{c}" points="{band}"/>'
        '<polyline class="line c{c}" stroke-dasharray="{dash}" points="{line}"/>{marks}'
    ).format(
        c=place % COLOURS, band=" ".join(upper + lower[::-1]), dash=dash(place), line=" ".join(corners), marks=marks
    )


def _dots(one: Series, place: int, x: Axis, y: Axis) -> Markup:
    return Markup("").join(
        Markup('<circle class="dot f{}" cx="{:.1f}" cy="{:.1f}" r="2"/>').format(place % COLOURS, x(at), y(value))
        for at, value in one.dots
    )


def dash(place: int) -> str:
    """The dashes of the series at `place`: with its colour they tell it from the others."""
    return DASHES[place % len(DASHES)]


def key(place: int) -> Markup:
    """A sample of the line of the series at `place`, for a legend."""
    return Markup(
        '<svg class="key" viewBox="0 0 36 12" aria-hidden="true"><line class="line c{}" stroke-dasharray="{}" '
        'x1="1" x2="35" y1="6" y2="6"/></svg>'
    ).format(place % COLOURS, dash(place))


# --- speedups of cases -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CaseBar:
    name: str
    ratio: float
    low: float
    high: float


def case_speedups(bars: Sequence[CaseBar], kind: str, baseline: str = "the seed") -> Markup:
    """A point with its interval for each case, beside the line of no change.  `kind`: see `Series`.

    baseline: what speedups are over.
    """
    row, left = 34, 130
    height = _TOP + row * len(bars) + _BOTTOM
    x = axis([v for b in bars for v in (b.low, b.high)] + [1.0], left, WIDTH - _RIGHT - 34)
    body = [_x_ticks(x, _TOP, height - _BOTTOM, f"speedup over {baseline}, {kind}", "×")]
    body.append(
        Markup('<line class="level" x1="{0:.1f}" x2="{0:.1f}" y1="{1}" y2="{2}"/>').format(
            x(1.0), _TOP, height - _BOTTOM
        )
    )
    body += [_case(bar, _TOP + row * (place + 0.5), x) for place, bar in enumerate(bars)]
    title = f"Speedup by case ({kind}): " + "; ".join(f"{b.name} {b.ratio:.2f}×" for b in bars)
    return _svg(WIDTH, height, title, body)


def _case(bar: CaseBar, y: float, x: Axis) -> Markup:
    mark = Markup(
        '<line class="whisker" x1="{:.1f}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}"/>'
        '<circle class="f0" cx="{:.1f}" cy="{:.1f}" r="5"/>'
    ).format(x(bar.low), x(bar.high), y, y, x(bar.ratio), y)
    name = Markup('<text class="name" x="{}" y="{:.1f}" text-anchor="end">{}</text>')
    value = Markup('<text class="value" x="{:.1f}" y="{:.1f}">{:.2f}×</text>')
    text_y = y + 4
    return (
        name.format(x.first_px - 10, text_y, _cut(bar.name, 16))
        + mark
        + value.format(x(bar.high) + 6, text_y, bar.ratio)
    )


# --- roofline --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Move:
    """A case from seed to best: arithmetic intensity in flop/byte, rates in flop/s."""

    case: str
    intensity: float
    seed_flops: float
    best_flops: float


def roofline(moves: Sequence[Move], bytes_per_s: float, flops_per_s: float, kind: str) -> Markup:
    """Both ceilings, and for each case a line from its seed (hollow) to the best kernel (filled)."""
    ridge = flops_per_s / bytes_per_s
    intensities = [m.intensity for m in moves] + [ridge]
    x = axis(intensities, _LEFT, WIDTH - _RIGHT, log=True)
    x = Axis(x.low / 2, x.high * 2, x.first_px, x.last_px, True)
    rates = [r / 1e12 for m in moves for r in (m.seed_flops, m.best_flops)] + [flops_per_s / 1e12]
    y = axis(rates, HEIGHT - _BOTTOM, _TOP, log=True)
    left = max(x.low, y.low * 1e12 / bytes_per_s)
    corners = [(left, left * bytes_per_s / 1e12), (ridge, flops_per_s / 1e12), (x.high, flops_per_s / 1e12)]
    line = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in corners)
    body = [_frame(x, y, "arithmetic intensity, flop per byte", "TFLOP/s")]
    body.append(Markup('<polyline class="ceiling" points="{}"/>').format(line))
    used: list[float] = []
    for place, move in enumerate(moves):
        at = x(move.intensity)
        while any(abs(at - other) < 20 for other in used):  # cases of the same intensity would hide each other
            at += 20
        used.append(at)
        body.append(_move(place, move, at, y))
    title = f"Roofline ({kind}): " + "; ".join(
        f"{m.case} from {m.seed_flops / 1e12:.3g} to {m.best_flops / 1e12:.3g} TFLOP/s" for m in moves
    )
    return _svg(WIDTH, HEIGHT, title, body)


def _move(place: int, move: Move, x: float, y: Axis) -> Markup:
    low, high = y(move.seed_flops / 1e12), y(move.best_flops / 1e12)
    c = place % COLOURS
    line = Markup('<line class="line c{}" x1="{:.1f}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}"/>').format(c, x, x, low, high)
    seed = Markup('<circle class="hollow c{}" cx="{:.1f}" cy="{:.1f}" r="5"><title>{}: seed</title></circle>')
    best = Markup('<circle class="f{}" cx="{:.1f}" cy="{:.1f}" r="5"><title>{}: best</title></circle>')
    label = Markup('<text class="value" x="{:.1f}" y="{:.1f}" text-anchor="middle">{}</text>')
    return (
        line
        + seed.format(c, x, low, move.case)
        + best.format(c, x, high, move.case)
        + label.format(x, max(low, high) + 20, place + 1)
    )


# --- lineage ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LineageNode:
    """A trial in the lineage of the best; `main` if it lies on the line of first parents."""

    index: int
    parents: Sequence[int]
    operator: str
    label: str
    main: bool
    link: str = ""


def lineage(nodes: Mapping[int, LineageNode]) -> Markup:
    """The ancestors of the best as a graph, the seed on top; solid lines to first parents, dashed ones to others."""
    rows = _rows(nodes)
    width = max(len(row) for row in rows) * (_NODE_WIDTH + _GAP_X) + _GAP_X
    places = {}
    for depth, row in enumerate(rows):
        left = (width - len(row) * (_NODE_WIDTH + _GAP_X) + _GAP_X) / 2
        for column, index in enumerate(row):
            places[index] = (left + column * (_NODE_WIDTH + _GAP_X), _GAP_X + depth * (_NODE_HEIGHT + _GAP_Y))
    height = len(rows) * (_NODE_HEIGHT + _GAP_Y) - _GAP_Y + 2 * _GAP_X
    body = [*_edges(nodes, places), *(_node(nodes[index], *place) for index, place in places.items())]
    title = "Lineage of the best: " + ", ".join(f"trial {n.index} ({n.operator})" for n in nodes.values() if n.main)
    return _svg(width, height, title, body, fixed=True)


def _rows(nodes: Mapping[int, LineageNode]) -> list[list[int]]:
    """Indices by generation (the longest way from the seed), in an order that keeps lines short."""
    depth: dict[int, int] = {}
    for index in sorted(nodes):  # parents have smaller numbers
        depth[index] = 1 + max((depth[p] for p in nodes[index].parents if p in depth), default=-1)
    rows: list[list[int]] = [[] for _ in range(max(depth.values()) + 1)]
    for index, level in depth.items():
        rows[level].append(index)
    at: dict[int, float] = {}
    for row in rows:
        wanted = {i: [at[p] for p in nodes[i].parents if p in at] for i in row}
        row.sort(key=lambda i: (sum(wanted[i]) / len(wanted[i]) if wanted[i] else 0.0, i))
        at |= {index: place - (len(row) - 1) / 2 for place, index in enumerate(row)}
    return rows


def _edges(nodes: Mapping[int, LineageNode], places: Mapping[int, tuple[float, float]]) -> Iterator[Markup]:
    for node in nodes.values():
        x, y = places[node.index]
        for order, parent in enumerate(p for p in node.parents if p in places):
            px, py = places[parent]
            kind = " other" if order else " main" if node.main else ""
            x1, y1, x2, bend = px + _NODE_WIDTH / 2, py + _NODE_HEIGHT, x + _NODE_WIDTH / 2, _GAP_Y / 2
            yield Markup('<path class="edge{}" d="M{} {} C{} {} {} {} {} {}"/>').format(
                kind, x1, y1, x1, y1 + bend, x2, y - bend, x2, y
            )


def _node(node: LineageNode, x: float, y: float) -> Markup:
    middle = x + _NODE_WIDTH / 2
    box = Markup(
        '<rect class="node{}" x="{:.0f}" y="{:.0f}" width="{}" height="{}" rx="6"/>'
        '<text class="name" x="{:.0f}" y="{:.0f}" text-anchor="middle">#{} {}</text>'
        '<text class="value" x="{:.0f}" y="{:.0f}" text-anchor="middle">{}</text>'
    ).format(
        *(" main" if node.main else "", x, y, _NODE_WIDTH, _NODE_HEIGHT),
        *(middle, y + 18, node.index, _cut(node.operator, 11)),
        *(middle, y + 35, node.label),
    )
    if not node.link:
        return box
    words = f"trial {node.index}, {node.operator}, {node.label}: to its diff"
    return Markup('<a href="#{}" aria-label="{}">{}</a>').format(node.link, words, box)


# --- shared ----------------------------------------------------------------------------------------------------------


def _svg(width: float, height: float, title: str, body: Sequence[Markup], *, fixed: bool = False) -> Markup:
    """`fixed`: as large as it is (inside something that scrolls), not as wide as there is room."""
    size = Markup(' width="{:.0f}" height="{:.0f}"').format(width, height) if fixed else ""
    # A graphic with links is a group: role "img" would hide them from those who do not see it.
    form = Markup('<svg class="chart" viewBox="0 0 {:.0f} {:.0f}"{} role="{}" aria-label="{}">{}</svg>')
    return form.format(width, height, size, "group" if fixed else "img", title, Markup("").join(body))


def _frame(x: Axis, y: Axis, x_label: str, y_label: str, suffix: str = "") -> Markup:
    rows = Markup("").join(
        Markup(
            '<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/><text x="{}" y="{:.1f}" text-anchor="end">{}'
            "</text>"
        ).format(x.first_px, x.last_px, y(t), y(t), x.first_px - 6, y(t) + 4, number(t) + suffix)
        for t in y.ticks()
    )
    middle = (y.first_px + y.last_px) / 2
    label = Markup('<text class="axis" transform="translate(12 {:.0f}) rotate(-90)" text-anchor="middle">{}</text>')
    return rows + _x_ticks(x, y.last_px, y.first_px, x_label) + label.format(middle, y_label)


def _x_ticks(x: Axis, top: float, bottom: float, label: str, suffix: str = "") -> Markup:
    marks = Markup("").join(
        Markup(
            '<line class="grid" x1="{0:.1f}" x2="{0:.1f}" y1="{1}" y2="{2}"/>'
            '<text x="{0:.1f}" y="{3}" text-anchor="middle">{4}</text>'
        ).format(x(t), top, bottom, bottom + 17, number(t) + suffix)
        for t in x.ticks()
    )
    middle = (x.first_px + x.last_px) / 2
    return marks + Markup('<text class="axis" x="{:.0f}" y="{:.0f}" text-anchor="middle">{}</text>').format(
        middle, bottom + 36, label
    )


def _level(y: Axis, value: float) -> Markup:
    return Markup('<line class="level" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(
        _LEFT, WIDTH - _RIGHT, y(value), y(value)
    )


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
