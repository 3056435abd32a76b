"""Dates and times as JSON texts: RFC 3339, as the formats "date" and "date-time" of JSON Schema have them."""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta, timezone
from typing import Any

from lmprog.schema.reading import as_text

DATE_SCHEMA = {"type": "string", "format": "date", "pattern": "^[0-9]{0,3}[1-9]"}
MOMENT_SCHEMA = {"type": "string", "format": "date-time", "pattern": "^[0-9]{0,3}[1-9]"}
# The pattern leaves out the year 0000, which the formats have and Python has not.

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_MOMENT = re.compile(
    r"(\d{4}-\d{2}-\d{2})[tT](\d{2}):(\d{2}):(\d{2})(?:\.(\d+))?(?:[zZ]|([+-])(\d{2}):(\d{2}))", re.ASCII
)


def as_date(value: Any) -> date:
    text = as_text(value)
    if not _DATE.fullmatch(text):
        raise ValueError
    return date.fromisoformat(text)


def as_moment(value: Any) -> datetime:
    """With its time zone. A leap second is the second after it; digits beyond microseconds are dropped."""
    match = _MOMENT.fullmatch(as_text(value))
    if match is None:
        raise ValueError
    day, hours, minutes, seconds, fraction, sign, zone_hours, zone_minutes = match.groups()
    is_leap_second = seconds == "60"
    moment = datetime(
        *date.fromisoformat(day).timetuple()[:3],
        int(hours),
        int(minutes),
        59 if is_leap_second else int(seconds),
        int((fraction or "")[:6].ljust(6, "0")),
        tzinfo=_zone(sign, zone_hours, zone_minutes),
    )
    return moment + timedelta(seconds=1) if is_leap_second else moment


def _zone(sign: str | None, hours: str | None, minutes: str | None) -> timezone:
    if sign is None:
        return timezone.utc
    offset = timedelta(hours=int(hours or 0), minutes=int(minutes or 0))
    return timezone(-offset if sign == "-" else offset)
