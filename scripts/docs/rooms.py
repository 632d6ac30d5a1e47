"""The rooms of `helpers` and who imports whom, read from the code, and drawn.

    python scripts/docs/rooms.py            # writes docs/rooms.svg
    python scripts/docs/rooms.py --check    # writes nothing: is the drawing that of the code?

A room is a folder; a file beside folders (engine/plan.py) is a room of its own. The lazy faces in
__init__.py are left out: they name what is elsewhere and import nothing by themselves.
"""

import argparse
import ast
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "rooms.svg"
WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN = 128, 30, 14, 46, 20
COLOURS = {"engine": "#dbe9f6", "planner": "#fde8d0", "lab": "#e0f0dc"}
OTHER_COLOUR = "#eeeeee"

Graph = dict[str, set[str]]


def room_of(module: tuple[str, ...]) -> str:
    """The room of a module below `helpers`, as ("engine", "pipeline", "stages")."""
    split = Path(ROOT, "helpers", module[0]).is_dir() and has_rooms(module[0])
    return "/".join(module[:2]) if split and len(module) > 1 else module[0]


def has_rooms(top: str) -> bool:
    """Does this folder of `helpers` have folders of its own?"""
    return any((path / "__init__.py").exists() for path in Path(ROOT, "helpers", top).iterdir())


def room_imports() -> Graph:
    """Of each room, the rooms that its modules import, at any depth of their code."""
    graph: Graph = {}
    for path in sorted((ROOT / "helpers").rglob("*.py")):
        module = path.relative_to(ROOT / "helpers").with_suffix("").parts
        if module[-1] == "__init__":
            continue
        room = room_of(module)
        graph.setdefault(room, set())
        for name in imported(path):
            other = room_of(name)
            if other != room:
                graph[room].add(other)
    return graph


def imported(path: Path) -> Iterator[tuple[str, ...]]:
    """The modules below `helpers` that a file imports, faces left out."""
    package = path.relative_to(ROOT).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            base += tuple(node.module.split(".")) if node.module else ()
            names = [(*base, alias.name) for alias in node.names]
        else:
            continue
        for name in names:
            module = longest_module(name)
            if module is not None:
                yield module[1:]


def longest_module(name: tuple[str, ...]) -> tuple[str, ...] | None:
    """The part of a dotted name that is a file below `helpers`; None for others and for faces."""
    for end in range(len(name), 1, -1):
        if name[0] == "helpers" and Path(ROOT, *name[:end]).with_suffix(".py").is_file():
            return name[:end]
    return None


def levels(graph: Graph) -> list[list[str]]:
    """The rooms in the order in which they can be read: each level imports only those before it.

    Raises:
        ValueError: some rooms import each other in a circle.
    """
    done: set[str] = set()
    found = []
    while len(done) < len(graph):
        level = sorted(room for room in graph if room not in done and graph[room] <= done)
        if not level:
            circle = {room: sorted(graph[room] - done) for room in graph if room not in done}
            raise ValueError(f"rooms import each other in a circle: {circle}")
        found.append(level)
        done |= set(level)
    return found


def direct(graph: Graph) -> Graph:
    """The graph without arrows that longer ways imply."""
    below: Graph = {}
    for level in levels(graph):
        for room in level:
            below[room] = set(graph[room]).union(*(below[other] for other in graph[room]))
    return {
        room: {
            other
            for other in others
            if not any(other in below[between] for between in others - {other})
        }
        for room, others in graph.items()
    }


def draw(graph: Graph) -> str:
    """An SVG picture: what is imported stands below, arrows point to it."""
    rows = levels(graph)[::-1]
    widest = max(map(len, rows))
    total_width = 2 * MARGIN + widest * (WIDTH + GAP_X)
    places = {}
    for row, rooms in enumerate(rows):
        start = (total_width - len(rooms) * (WIDTH + GAP_X) + GAP_X) / 2
        for column, room in enumerate(rooms):
            places[room] = start + column * (WIDTH + GAP_X), MARGIN + row * (HEIGHT + GAP_Y)
    arrows = [
        f'<path d="M{places[room][0] + WIDTH / 2:.0f} {places[room][1] + HEIGHT} '
        f'L{places[other][0] + WIDTH / 2:.0f} {places[other][1] - 4:.0f}" '
        'stroke="#999999" fill="none" marker-end="url(#head)"/>'
        for room, others in sorted(direct(graph).items())
        for other in sorted(others)
    ]
    boxes = [_box(room, *place) for room, place in sorted(places.items())]
    height = 2 * MARGIN + len(rows) * (HEIGHT + GAP_Y) - GAP_Y
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{total_width}" height="{height}" '
            'font-family="sans-serif" font-size="12">',
            "<title>The rooms of helpers: an arrow points to what a room imports</title>",
            '<defs><marker id="head" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="7" '
            'markerHeight="7" orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="#999999"/>'
            "</marker></defs>",
            f'<rect width="{total_width}" height="{height}" fill="white"/>',
            *arrows,
            *boxes,
            "</svg>\n",
        ]
    )


def _box(room: str, x: float, y: float) -> str:
    colour = COLOURS.get(room.split("/")[0], OTHER_COLOUR)
    return (
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{WIDTH}" height="{HEIGHT}" rx="5" fill="{colour}" '
        f'stroke="#555555"/><text x="{x + WIDTH / 2:.0f}" y="{y + HEIGHT / 2 + 4:.0f}" '
        f'text-anchor="middle">{escape(room)}</text>'
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    picture = draw(room_imports())
    if parser.parse_args().check:
        return int(not PICTURE.is_file() or PICTURE.read_text(encoding="utf-8") != picture)
    PICTURE.write_text(picture, encoding="utf-8")
    print(f"wrote {PICTURE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
