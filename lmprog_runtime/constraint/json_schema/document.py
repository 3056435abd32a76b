"""The schema text as a set of places: dialects, identifiers and references. Knows nothing of automata.

A *place* is one schema object in the text; a *resource* is a place with its own base URI (the root, and each `$id`).
Every place is checked against its dialect once, here, so that the rest of the front end meets well-formed schemas only.
Nothing is ever fetched.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from lmprog_runtime.constraint.json_schema import dialects
from lmprog_runtime.constraint.json_schema.dialects import FIRST_DRAFT, SHAPES, SUBSCHEMAS, UNDECLARED, Dialect
from lmprog_runtime.constraint.json_schema.options import Clock
from lmprog_runtime.errors import ConstraintInvalid, ConstraintTooLarge, ConstraintUnsupported


class Resource:
    """A schema with its own base URI."""

    def __init__(self, uri: str, root: Any, dialect: Dialect) -> None:
        self.uri = uri
        self.root = root  # its JSON value
        self.dialect = dialect
        self.anchors: dict[str, Place] = {}
        self.dynamic_anchors: dict[str, Place] = {}  # "" is draft 2019-09's $recursiveAnchor


class Place:
    """One schema object, where it stands, and whose it is."""

    __slots__ = ("depth", "parent", "path", "resource", "schema")

    def __init__(self, schema: dict[str, Any], parent: Place | None, path: str, resource: Resource) -> None:
        self.schema = schema
        self.parent = parent
        self.path = path  # JSON pointer below the parent
        self.resource = resource
        self.depth: int = parent.depth + 1 if parent else 0

    @property
    def pointer(self) -> str:
        """JSON pointer from the root of the text (RFC 6901)."""
        steps: list[str] = []
        place: Place | None = self
        while place:
            steps.append(place.path)
            place = place.parent
        return "".join(reversed(steps))

    def at(self, *tokens: str) -> str:
        """The pointer of something inside, as messages give it."""
        return "#" + self.pointer + "".join("/" + escape(token) for token in tokens)


def escape(token: str) -> str:
    """A JSON pointer token (RFC 6901 section 3)."""
    return token.replace("~", "~0").replace("/", "~1")


class Document:
    """All places of one schema, found in one pass.

    Raises ConstraintInvalid for a malformed schema, ConstraintUnsupported for an unknown dialect, ConstraintTooLarge
    for more than `max_depth` schemas inside each other; each with the JSON pointer.
    """

    def __init__(self, root: Any, max_depth: int, clock: Clock) -> None:
        if not isinstance(root, (dict, bool)):
            raise ConstraintInvalid("A JSON schema is an object, true or false; this text holds something else.")
        self.root = root
        self._max_depth = max_depth
        self._clock = clock
        self._places: dict[int, Place] = {}  # by identity of the schema object
        self._resources: dict[str, Resource] = {}
        self._start = Resource("", root, UNDECLARED)
        self._resources[""] = self._start
        if isinstance(root, dict):
            self._scan(root, None, "", self._start)

    @property
    def has_dynamic_scope(self) -> bool:
        return any(resource.dynamic_anchors for resource in self._resources.values())

    def place(self, schema: dict[str, Any]) -> Place:
        return self._places[id(schema)]

    # -- the pass ---------------------------------------------------------------------------------------------------

    def _scan(self, schema: Any, parent: Place | None, path: str, resource: Resource) -> None:
        pending = [(schema, parent, path, resource)]
        while pending:
            schema, parent, path, resource = pending.pop()
            if isinstance(schema, bool):
                continue
            if not isinstance(schema, dict):
                where = "#" + (parent.pointer if parent else "") + path
                raise ConstraintInvalid(f"The schema at {where} must be an object, true or false.")
            self._clock.check()
            place = self._enter(schema, parent, path, resource)
            pending.extend((child, place, step, place.resource) for step, child in _children(place))

    def _enter(self, schema: dict[str, Any], parent: Place | None, path: str, resource: Resource) -> Place:
        place = Place(schema, parent, path, resource)
        if place.depth > self._max_depth:
            raise ConstraintTooLarge(
                f"The schema nests more than {self._max_depth} schemas inside each other; make it flatter."
            )
        self._places[id(schema)] = place
        if "$schema" in schema or "$id" in schema or "id" in schema:
            self._identify(place)
        _check(place)
        self._name(place)
        return place

    def _identify(self, place: Place) -> None:
        schema, outer = place.schema, place.resource
        dialect = _dialect(place) or outer.dialect
        uri = schema.get(dialect.id_keyword)
        is_root = schema is outer.root
        if not isinstance(uri, str) or (dialect.ref_hides_siblings and "$ref" in schema):
            if is_root:
                outer.dialect = dialect
            return
        if uri.startswith("#"):  # drafts 4 to 7: a name inside its resource
            outer.anchors.setdefault(uri[1:], place)
            return
        base = urldefrag(_join(outer.uri, uri)).url
        if is_root:
            place.resource.uri, place.resource.dialect = base, dialect
        else:
            place.resource = Resource(base, schema, dialect)
        self._resources.setdefault(base, place.resource)

    def _name(self, place: Place) -> None:
        schema, resource = place.schema, place.resource
        if resource.dialect.draft < 2019:
            return
        if "$anchor" in schema:
            resource.anchors.setdefault(schema["$anchor"], place)
        if "$dynamicAnchor" in schema:
            resource.anchors.setdefault(schema["$dynamicAnchor"], place)
            resource.dynamic_anchors.setdefault(schema["$dynamicAnchor"], place)
        if schema.get("$recursiveAnchor") is True:
            resource.dynamic_anchors.setdefault("", place)

    # -- references -------------------------------------------------------------------------------------------------

    def resolve(self, place: Place, keyword: str) -> Any:
        """The schema that a reference keyword of a place names.

        Raises ConstraintInvalid when nothing is there, ConstraintUnsupported when it would have to be fetched.
        """
        reference = place.schema[keyword]
        uri, fragment = urldefrag(_join(place.resource.uri, reference))
        resource = self._resources.get(uri)
        if resource is None:
            raise ConstraintUnsupported(
                f"{keyword} at {place.at(keyword)} names {reference!r}, which is not in this schema; nothing is ever "
                "fetched, so copy it into $defs with its $id."
            )
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            found: Any = resource.anchors[fragment].schema if fragment in resource.anchors else None
        else:
            found = self._follow(resource, fragment)
        if not isinstance(found, (dict, bool)):
            raise ConstraintInvalid(f"{keyword} at {place.at(keyword)} names {reference!r}, where there is no schema.")
        return found

    def _follow(self, resource: Resource, pointer: str) -> Any:
        """The value at a JSON pointer, entered as a schema even where no keyword of ours leads to it."""
        value = resource.root
        nearest = self._places.get(id(value))
        path = ""
        for token in pointer.split("/")[1:]:
            value = _step(value, token.replace("~1", "/").replace("~0", "~"))
            path += "/" + token
            if id(value) in self._places:
                nearest, path = self._places[id(value)], ""
        if isinstance(value, dict) and id(value) not in self._places and nearest:
            self._scan(value, nearest, path, nearest.resource)
        return value


def _join(base: str, reference: str) -> str:
    """Resolve a reference (RFC 3986 section 5); urljoin leaves out schemes it does not know, such as urn."""
    if reference.startswith("#"):
        return urldefrag(base).url + reference
    return urljoin(base, reference)


def _step(value: Any, token: str) -> Any:
    if isinstance(value, dict):
        return value.get(token)
    if isinstance(value, list) and token.isdecimal() and int(token) < len(value):
        return value[int(token)]
    return None


def _dialect(place: Place) -> Dialect | None:
    uri = place.schema.get("$schema")
    if not isinstance(uri, str):
        return None
    found = dialects.declared_dialect(uri)
    if found is None:
        raise ConstraintUnsupported(
            f"$schema at {place.at('$schema')} names {uri!r}, which is none of the drafts 4 to 2020-12; use one."
        )
    return found


def _check(place: Place) -> None:
    """Raise for a keyword whose value is malformed, or that the declared draft does not have yet."""
    draft = place.resource.dialect.draft
    for keyword, value in place.schema.items():
        shape = SHAPES.get(keyword)
        if shape and not shape.fits(value):
            raise ConstraintInvalid(f"{keyword} at {place.at(keyword)} must be {shape.wanted}.")
        if draft < FIRST_DRAFT.get(keyword, 0):
            raise ConstraintUnsupported(
                f"{keyword} at {place.at(keyword)} is younger than the draft that $schema declares; declare its draft."
            )


def _children(place: Place) -> Iterator[tuple[str, Any]]:
    """Each subschema with the pointer that leads to it."""
    for keyword, value in place.schema.items():
        holder = SUBSCHEMAS.get(keyword)
        if holder is not None:
            yield from _subschemas(place, keyword, value, holder)


def _subschemas(place: Place, keyword: str, value: Any, holder: int) -> Iterator[tuple[str, Any]]:
    if holder == dialects.ONE or (holder == dialects.ONE_OR_MANY and not isinstance(value, list)):
        yield "/" + keyword, value
    elif holder in (dialects.MANY, dialects.ONE_OR_MANY):
        if not isinstance(value, list):
            raise ConstraintInvalid(f"{keyword} at {place.at(keyword)} must be a list of schemas.")
        if keyword == "items" and not place.resource.dialect.has_item_lists:
            raise ConstraintInvalid(f"items at {place.at(keyword)} must be a schema; lists are prefixItems in 2020-12.")
        yield from ((f"/{keyword}/{index}", child) for index, child in enumerate(value))
    elif not isinstance(value, dict):
        raise ConstraintInvalid(f"{keyword} at {place.at(keyword)} must be an object of schemas.")
    else:
        yield from _named(place, keyword, value, holder)


def _named(place: Place, keyword: str, value: dict[str, Any], holder: int) -> Iterator[tuple[str, Any]]:
    for name, child in value.items():
        if not (holder == dialects.NAMED_OR_NAMES and isinstance(child, list)):
            yield f"/{keyword}/{escape(name)}", child
        elif not all(isinstance(required, str) for required in child):
            raise ConstraintInvalid(f"{keyword} at {place.at(keyword, name)} must be a schema or a list of names.")
