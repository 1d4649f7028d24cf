"""Draws the training steps of several sides as horizontal bars, in an SVG that is readable on light
and dark pages.

Rows differ by orders of magnitude, so a bar shows the time relative to plain libtorch, starting at
zero. The milliseconds are printed at its end.
"""

import dataclasses
import math
from xml.sax.saxutils import escape

from report import number

BASE = "stock"  # every group is relative to this side

# The sides in the order of the bars, with their legend names and colours. The colours are easy to
# tell from each other and from both backgrounds, also for colour-blind readers.
BARS = {
    "stock": ("plain libtorch", "#8c959f"),
    "accelerate": ("Accelerate", "#74b3ea"),
    "compiled": ("Accelerate + torch.compile", "#2b76c9"),
    "ours": ("Accelerant", "#f2a33c"),
    "captured": ("Accelerant, captured", "#d5551c"),
}
OURS = ("ours", "captured")

WIDTH = 800
MARGIN = 24
PANEL_GAP = 32
PANEL_TOP = 96
BAR_HEIGHT = 11
BAR_STEP = 13
GROUP_HEAD = 19
GROUP_GAP = 9
VALUE_WIDTH = 62  # space for the milliseconds after the longest bar
GRID = 0.5

STYLE = """\
    text { font-family: system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328; }
    .title { font-size: 16px; font-weight: 600; }
    .panel { font-size: 13px; font-weight: 600; }
    .legend, .group { font-size: 12px; }
    .value { font-size: 10.5px; }
    .ours { font-weight: 700; }
    .quiet { font-size: 10.5px; fill: #59636e; }
    .card { fill: #ffffff; stroke: #d1d9e0; }
    .behind { fill: #ffffff; }
    .grid { stroke: #d1d9e0; }
    .base { stroke: #59636e; }
    @media (prefers-color-scheme: dark) {
      text { fill: #f0f6fc; }
      .quiet { fill: #9198a1; }
      .card { fill: #0d1117; stroke: #3d444d; }
      .behind { fill: #0d1117; }
      .grid { stroke: #3d444d; }
      .base { stroke: #9198a1; }
    }"""


@dataclasses.dataclass
class Group:
    """One row of a result: milliseconds by side."""

    title: str
    milliseconds: dict

    def relative(self, side):
        return self.milliseconds[side] / self.milliseconds[BASE]


@dataclasses.dataclass
class Panel:
    """The groups of one machine."""

    title: str
    groups: list


def text(x, y, css, content, anchor="start"):
    return f'  <text x="{x:g}" y="{y:g}" class="{css}" text-anchor="{anchor}">{escape(content)}</text>'


def line(x, top, bottom, css):
    return f'  <line x1="{x:g}" y1="{top:g}" x2="{x:g}" y2="{bottom:g}" class="{css}"/>'


def rectangle(x, y, width, height, colour):
    return f'  <rect x="{x:g}" y="{y:g}" width="{width:.1f}" height="{height:g}" rx="1.5" fill="{colour}"/>'


def value_label(x, y, css, content):
    """A number on a background box, so that no grid line runs through it."""
    width = 6.4 * len(content) + 4
    return [f'  <rect x="{x - 3:.1f}" y="{y:g}" width="{width:.1f}" height="{BAR_STEP}" class="behind"/>',
            text(round(x, 1), y + 9, css, content)]


def ticks(end):
    return [GRID * index for index in range(int(end / GRID) + 1)]


def group_height(group):
    return GROUP_HEAD + BAR_STEP * len(group.milliseconds) + GROUP_GAP


def draw_grid(x, top, bottom, unit, end):
    return [line(x + unit * value, top, bottom, "base" if value in (0, 1) else "grid") for value in ticks(end)]


def draw_group(group, x, y, unit, end):
    lines = [text(x, y + 12, "group", group.title)]
    y += GROUP_HEAD
    lines += draw_grid(x, y - 3, y + BAR_STEP * len(group.milliseconds) - 2, unit, end)
    for side in (side for side in BARS if side in group.milliseconds):
        length = unit * group.relative(side)
        css = "value ours" if side in OURS else "value"
        lines += [*value_label(x + length + 5, y, css, f"{number(group.milliseconds[side])} ms"),
                  rectangle(x, y, length, BAR_HEIGHT, BARS[side][1])]
        y += BAR_STEP
    return lines


def draw_panel(panel, x, bottom, unit, end):
    lines = [text(x, PANEL_TOP, "panel", panel.title)]
    y = PANEL_TOP + 12
    for group in panel.groups:
        lines += draw_group(group, x, y, unit, end)
        y += group_height(group)
    return lines + [text(x + unit * value, bottom + 8, "quiet", f"{value:g}×" if value else "0", "middle")
                    for value in ticks(end)]


def draw_legend(y):
    lines, x = [], MARGIN
    for name, colour in BARS.values():
        lines += [rectangle(x, y - 10, 12, 12, colour), text(x + 17, y, "legend", name)]
        x += 38 + 7.1 * len(name)
    return lines


def description(panels):
    """The chart in words, for readers who cannot see it."""
    sentences = []
    for panel in panels:
        for group in panel.groups:
            values = ", ".join(f"{BARS[side][0]} {number(value)} ms" for side, value in group.milliseconds.items())
            sentences.append(f"{panel.title}, {group.title}: {values}.")
    return " ".join(sentences)


def svg(panels, caption):
    """The whole picture; the caption is a list of lines."""
    end = GRID / 2 * math.ceil(max(group.relative(side) for panel in panels for group in panel.groups
                                   for side in group.milliseconds) / (GRID / 2))
    panel_width = (WIDTH - 2 * MARGIN - PANEL_GAP * (len(panels) - 1)) / len(panels)
    unit = (panel_width - VALUE_WIDTH) / end
    bottom = PANEL_TOP + 12 + max(sum(map(group_height, panel.groups)) for panel in panels)
    height = bottom + 34 + 15 * len(caption)
    title = "Time per training step, relative to plain libtorch"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" height="{height:g}"'
        ' role="img" aria-labelledby="title description">',
        f'  <title id="title">{escape(title)}; shorter is better</title>',
        f'  <desc id="description">{escape(description(panels))}</desc>',
        f"  <style>\n{STYLE}\n  </style>",
        f'  <rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1:g}" rx="6" class="card"/>',
        text(MARGIN, 32, "title", title),
        text(WIDTH - MARGIN, 32, "quiet", "shorter is better", "end"),
        *draw_legend(60),
    ]
    for index, panel in enumerate(panels):
        lines += draw_panel(panel, MARGIN + index * (panel_width + PANEL_GAP), bottom, unit, end)
    lines += [text(MARGIN, bottom + 33 + 15 * index, "quiet", words) for index, words in enumerate(caption)]
    return "\n".join([*lines, "</svg>"]) + "\n"
