"""The table of a result, in Markdown."""

from result import OTHER_SIDES, OUR_SIDES, SIDES

BEGIN, END = "<!-- benchmarks: begin -->", "<!-- benchmarks: end -->"


def number(value):
    """Three significant digits."""
    if value == 0:
        return "0"
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:,.{digits}f}"


def figure_cell(row, side, spread):
    if side in row.figures:
        figure = row.figures[side]
        cell = number(figure.median)
        return f"{cell} ({number(figure.low)} - {number(figure.high)})" if spread and figure.rounds > 1 else cell
    return "not measured" if side in row.failures else "-"


def best_of_ours(row):
    """Which of our forms a user would choose: the fastest."""
    return min((side for side in OUR_SIDES if side in row.figures), key=lambda side: row.figures[side].median,
               default=None)


def ratio_cell(row, other):
    ours = best_of_ours(row)
    ratios = row.ratios()
    return number(ratios[f"{ours} / {other}"]) if f"{ours} / {other}" in ratios else "-"


def present(rows, sides):
    return [side for side in sides if any(side in row.figures or side in row.failures for row in rows)]


def table(rows, spread=True):
    """One line per row. The columns on the right say how many times as fast our faster form is."""
    sides = present(rows, SIDES)
    others = [side for side in OTHER_SIDES if any(ratio_cell(row, side) != "-" for row in rows)]
    heads = ["work", "unit", *(SIDES[side] for side in sides), *(f"x {SIDES[side]}" for side in others)]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row in rows:
        cells = [row.title, row.unit, *(figure_cell(row, side, spread) for side in sides),
                 *(ratio_cell(row, side) for side in others)]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def failure_lines(rows):
    """Equal reasons share one line."""
    reasons = {}
    for row in rows:
        for side, reason in row.failures.items():
            reasons.setdefault((side, reason), []).append(row.title)
    return [f"- {SIDES[side]}, {'; '.join(titles)}: {reason}" for (side, reason), titles in reasons.items()]


def heading(result):
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    lines = [f"# {result.machine['name']}, {result.date}", "", f"{versions}. Form: {result.form}."]
    return lines + [""] + [f"{note}" for note in result.notes] if result.notes else lines


def markdown(result):
    lines = heading(result)
    lines += ["", "Medians over rounds in which the sides take turns, with quartiles in brackets. `x ...`: how many times as",
              "fast the faster form of Accelerant is. docs/benchmarks.md explains the rows.", "", *table(result.rows)]
    failures = failure_lines(result.rows)
    if failures:
        lines += ["", "Not measured:", "", *failures]
    return "\n".join(lines) + "\n"


def between_markers(text, lines):
    """The text with everything between the markers replaced."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"the text needs one line {BEGIN} and one line {END}")
    before, rest = text.split(BEGIN)
    if END not in rest:
        raise ValueError(f"{END} comes before {BEGIN}")
    after = rest.split(END)[1]
    return before + BEGIN + "\n" + "\n".join(lines) + "\n" + END + after
