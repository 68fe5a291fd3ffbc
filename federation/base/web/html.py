"""From values to HTML: one Jinja2 environment, in which everything is escaped, and the filters that all pages share.

Templates come from the caller's package, then from this one: `page.html` is the shell of a served page, `document.html`
that of a page which is one file, loads nothing and runs no script.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, FileSystemLoader, PackageLoader, StrictUndefined

from federation.base.visible import counted_as, visible_lines

NOTHING = "–"
_HERE = Path(__file__).parent


def renderer(package: str, *filters: Callable[..., Any], names: Mapping[str, Any] | None = None) -> Callable[..., str]:
    """A function that renders a template of `package` by its name, with what it is given; `names` are always given."""
    loader = ChoiceLoader([PackageLoader(package), FileSystemLoader([_HERE / "templates", _HERE / "style"])])
    jinja = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_shown,
    )
    jinja.filters |= {one.__name__: one for one in (ratio, *filters)} | {"many": counted_as}
    jinja.globals |= dict(names or {})

    def page(name: str, **given: object) -> str:
        return jinja.get_template(f"{name}.html").render(given)

    return page


def _shown(value: object) -> object:
    """Foreign text steers nothing, in a page as on a terminal."""
    return visible_lines(value) if type(value) is str else value


def ratio(value: float | None) -> str:
    """Two digits, or all before the point; a dash where there is none.

    >>> ratio(0.971), ratio(13.3), ratio(1234.5), ratio(None)
    ('0.97', '13', '1,234', '–')
    """
    if value is None:
        return NOTHING
    return f"{value:,.0f}" if value >= 9.95 else f"{value:.2g}"
