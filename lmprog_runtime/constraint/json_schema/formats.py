"""Formats as ECMA-262 patterns: those that the JSON Schema specifications define (2020-12 validation section 7.3).

Dates know the lengths of months and leap years; a leap second is 23:59:60 UTC. Internationalised host names are checked
for their syntax (labels of letters, marks, digits and hyphens), not for the script rules of IDNA 2008.
"""

from __future__ import annotations

UNENFORCEABLE = frozenset(("regex",))
"""Defined by the standard, but no automaton can tell."""


def _whole(pattern: str) -> str:
    return f"^(?:{pattern})$"


_MONTH_DAY = (
    r"(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8])"
)
_LEAP_YEAR = r"(?:[0-9][0-9](?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DATE = rf"(?:[0-9]{{4}}-(?:{_MONTH_DAY})|{_LEAP_YEAR}-02-29)"
_HOURS_MINUTES = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_SECOND_FRACTION = r"(?:\.[0-9]+)?"
_OFFSET = rf"(?:[zZ]|[+-]{_HOURS_MINUTES})"
_TIME = rf"(?:{_HOURS_MINUTES}:[0-5][0-9]{_SECOND_FRACTION}{_OFFSET}|23:59:60{_SECOND_FRACTION}(?:[zZ]|[+-]00:00))"

# RFC 3339 appendix A: units in order without gaps, weeks alone.
_DURATION_TIME = r"T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
_DURATION_DATE = r"(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"
_DURATION = rf"P(?:[0-9]+W|{_DURATION_DATE}(?:{_DURATION_TIME})?|{_DURATION_TIME})"

_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_HOST_NAME = rf"(?=.{{1,253}}$){_LABEL}(?:\.{_LABEL})*"
_IDN_LETTER = r"[\p{L}\p{N}\p{M}]"
_IDN_LABEL = rf"{_IDN_LETTER}(?:[\p{{L}}\p{{N}}\p{{M}}-]{{0,61}}{_IDN_LETTER})?"
_IDN_HOST_NAME = rf"{_IDN_LABEL}(?:[.\u3002\uFF0E\uFF61]{_IDN_LABEL})*"

_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_H16 = r"[0-9a-fA-F]{1,4}"
_LS32 = rf"(?:{_H16}:{_H16}|{_IPV4})"
_IPV6 = "|".join(
    (
        rf"(?:{_H16}:){{6}}{_LS32}",
        rf"::(?:{_H16}:){{5}}{_LS32}",
        *(rf"(?:(?:{_H16}:){{0,{left}}}{_H16})?::(?:{_H16}:){{{4 - left}}}{_LS32}" for left in range(5)),
        rf"(?:(?:{_H16}:){{0,5}}{_H16})?::{_H16}",
        rf"(?:(?:{_H16}:){{0,6}}{_H16})?::",
    )
)

# RFC 5321 section 4.1.2: dot-string or quoted string; domain or address literal.
_ATOM = r"[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+"
_QUOTED = r'"(?:[\x20\x21\x23-\x5B\x5D-\x7E]|\\[\x20-\x7E])*"'
_LOCAL = rf"(?:{_ATOM}(?:\.{_ATOM})*|{_QUOTED})"
_ADDRESS = rf"\[(?:{_IPV4}|IPv6:(?:{_IPV6}))\]"
_EMAIL = rf"{_LOCAL}@(?:{_LABEL}(?:\.{_LABEL})*|{_ADDRESS})"
_IDN_ATOM = r"[a-zA-Z0-9!#$%&'*+/=?^_`{|}~\u0080-\u{10FFFF}-]+"
_IDN_EMAIL = rf"(?:{_IDN_ATOM}(?:\.{_IDN_ATOM})*|{_QUOTED})@(?:{_IDN_HOST_NAME}|{_ADDRESS})"


def _uri_parts(others: str, private: str) -> tuple[str, str]:
    """URI and URI reference (RFC 3986 appendix A); with `others` among the unreserved, IRIs (RFC 3987).

    Each holds the authority once: it is most of the pattern, and patterns are parsed anew for each schema.
    """
    unreserved = rf"a-zA-Z0-9._~{others}\-"
    escaped = r"%[0-9a-fA-F]{2}"
    subs = r"!$&'()*+,;="
    pchar = rf"(?:[{unreserved}{subs}:@]|{escaped})"
    user = rf"(?:(?:[{unreserved}{subs}:]|{escaped})*@)?"
    future = rf"[vV][0-9a-fA-F]+\.[a-zA-Z0-9._~{subs}:-]+"
    host = rf"(?:\[(?:{_IPV6}|{future})\]|(?:[{unreserved}{subs}]|{escaped})*)"
    authority = rf"{user}{host}(?::[0-9]*)?"
    rest = rf"(?:/{pchar}*)*"
    absolute = rf"/(?:{pchar}+{rest})?"
    no_colon = rf"(?:[{unreserved}{subs}@]|{escaped})+"
    tail = rf"(?:\?(?:{pchar}|[/?{private}])*)?(?:#(?:{pchar}|[/?])*)?"
    scheme = r"[a-zA-Z][a-zA-Z0-9+.-]*:"
    uri = rf"{scheme}(?://{authority}{rest}|{absolute}|{pchar}+{rest}|){tail}"
    either = rf"(?:{scheme})?(?://{authority}{rest}|{absolute}|)"
    return uri, rf"(?:{either}|{scheme}{pchar}+{rest}|{no_colon}{rest}){tail}"


_UCS = (
    r"\u00A0-\uD7FF\uF900-\uFDCF\uFDF0-\uFFEF"
    + "".join(rf"\u{{{plane:X}0000}}-\u{{{plane:X}FFFD}}" for plane in range(1, 14))
    + r"\u{E1000}-\u{EFFFD}"
)
_UCS = _UCS.replace(r"\u{E0000}-\u{EFFFD}", "")
_PRIVATE = r"\uE000-\uF8FF\u{F0000}-\u{FFFFD}\u{100000}-\u{10FFFD}"
_URI, _URI_REFERENCE = _uri_parts("", "")
_IRI, _IRI_REFERENCE = _uri_parts(_UCS, _PRIVATE)

# RFC 6570 section 2.
_TEMPLATE_VARIABLE = r"(?:[a-zA-Z0-9_]|%[0-9a-fA-F]{2})(?:\.?(?:[a-zA-Z0-9_]|%[0-9a-fA-F]{2}))*(?:\*|:[1-9][0-9]{0,3})?"
_TEMPLATE_LITERAL = rf"(?:[!#$&()*+,./0-9:;=?@A-Z\[\]_a-z~{_UCS}{_PRIVATE}-]|%[0-9a-fA-F]{{2}})"
_TEMPLATE = rf"(?:{_TEMPLATE_LITERAL}|\{{[+#./;?&=,!@|]?{_TEMPLATE_VARIABLE}(?:,{_TEMPLATE_VARIABLE})*\}})*"

_POINTER = r"(?:/(?:[^~/]|~[01])*)*".replace("[^~/]", r"[^~\/]")

FORMATS = {
    name: _whole(pattern)
    for name, pattern in {
        "date": _DATE,
        "time": _TIME,
        "date-time": rf"{_DATE}[tT]{_TIME}",
        "duration": _DURATION,
        "email": _EMAIL,
        "idn-email": _IDN_EMAIL,
        "hostname": _HOST_NAME,
        "idn-hostname": _IDN_HOST_NAME,
        "ipv4": _IPV4,
        "ipv6": _IPV6,
        "uri": _URI,
        "uri-reference": _URI_REFERENCE,
        "iri": _IRI,
        "iri-reference": _IRI_REFERENCE,
        "uri-template": _TEMPLATE,
        "uuid": r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
        "json-pointer": _POINTER,
        "relative-json-pointer": rf"(?:0|[1-9][0-9]*)(?:#|{_POINTER})",
    }.items()
}
"""Pattern by format name. Other names are annotations, as the standard says."""
