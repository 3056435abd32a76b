"""Formats: examples of what each lets through and refuses, and the two rules for names that are not formats."""

from __future__ import annotations

import datetime
import ipaddress
from random import Random

import pytest

from lmprog_runtime.errors import ConstraintUnsupported
from tests.support.schema_fuzz import Sampler
from tests.support.schema_suites import writer_of

EXAMPLES = {
    "date": (
        ["2024-02-29", "2000-02-29", "1999-12-31"],
        ["2023-02-29", "1900-02-29", "2024-13-01", "2024-04-31", "24-1-1"],
    ),
    "time": (["23:59:59Z", "00:00:00.123+05:30", "23:59:60Z"], ["24:00:00Z", "12:00Z", "12:00:00", "12:00:60Z"]),
    "date-time": (["2024-02-29T12:00:00Z", "1990-12-31t23:59:60z"], ["2024-02-30T12:00:00Z", "2024-02-29 12:00:00Z"]),
    "duration": (["P1Y2M3DT4H5M6S", "PT1M", "P2W", "P1D"], ["P", "PT", "P1S", "P1DT", "P1Y2W", "1D", "P1Y1D"]),
    "email": (["a.b+c@example.org", '"a b"@x.y', "x@[127.0.0.1]"], ["a..b@x.y", "@x", "a@", "a b@x.y", ".a@x.y"]),
    "idn-email": (["실례@실례.테스트", "a@b.c"], ["실례", "@b"]),
    "hostname": (["example.org", "a", "a-b.c1"], ["-a", "a-", "a_b", "", "a..b", "x" * 64]),
    "idn-hostname": (["실례.테스트", "a.b"], ["", "-a", "a b"]),
    "ipv4": (["0.0.0.0", "255.255.255.255"], ["256.0.0.1", "1.2.3", "01.2.3.4", "1.2.3.4.5"]),
    "ipv6": (
        ["::", "::1", "1:2:3:4:5:6:7:8", "1::8", "::ffff:1.2.3.4"],
        ["1", ":::", "1:2:3:4:5:6:7", "1::2::3", "12345::"],
    ),
    "uri": (
        ["http://a.b/c?d#e", "urn:x:y", "mailto:a@b", "http://[::1]:80/"],
        ["//a", "a", "http://a b", "http://[1", "1:a"],
    ),
    "uri-reference": (["/a/b", "a", "#f", "http://a", ""], ["\\\\a", "a b", "#f\\"]),
    "iri": (["http://ƒøø.ßår/?∂éœ"], ["/ƒøø", "http://a b"]),
    "iri-reference": (["/âππ", "#ƒ"], ["\\\\W", "#ƒ\\"]),
    "uri-template": (["http://a/{b,c}{?d*}", "a{+b:3}"], ["a{b", "a}b", "{:3}"]),
    "uuid": (["2EB8AA08-aa98-11ea-b4aa-73b441d16380"], ["2eb8aa08", "2eb8aa08-aa98-11ea-b4aa-73b441d1638g"]),
    "json-pointer": (["", "/a/b~0c~1d", "/"], ["a", "/~", "/~2"]),
    "relative-json-pointer": (["0", "1/a", "2#"], ["/a", "-1", "01", "1#/a"]),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples(name):
    valid, invalid = EXAMPLES[name]
    writer = writer_of({"format": name})
    assert [text for text in valid if not writer.accepts(text)] == []
    assert [text for text in invalid if writer.accepts(text)] == []
    assert writer.accepts(12)  # formats are about strings


@pytest.mark.parametrize("name", EXAMPLES)
def test_negated(name):
    valid, invalid = EXAMPLES[name]
    writer = writer_of({"type": "string", "not": {"format": name}})
    assert not any(map(writer.accepts, valid))
    assert all(map(writer.accepts, invalid))


@pytest.mark.parametrize(
    ("name", "parse"),
    [
        ("date", datetime.date.fromisoformat),
        ("ipv4", ipaddress.IPv4Address),
        ("ipv6", ipaddress.IPv6Address),
    ],
)
def test_random_texts_are_understood_by_the_standard_library(name, parse):
    random = Random(3)
    writer = writer_of({"type": "string", "format": name})
    sampler = Sampler(writer.expressions, writer.root)
    texts = {sampler.text(random) for _ in range(200)} - {None}
    assert len(texts) > 50
    for text in texts:
        if not text.startswith('"0000'):  # the library has no year 0
            parse(text.strip('"'))


def test_formats_can_be_annotations():
    assert writer_of({"format": "date"}, formats="annotate").accepts("no date")


def test_format_and_length_and_pattern_hold_together():
    writer = writer_of({"format": "date", "pattern": "^2024", "maxLength": 10})
    assert writer.accepts("2024-01-01")
    assert not writer.accepts("2023-01-01")


def test_a_format_that_no_automaton_can_tell_is_refused_by_name():
    with pytest.raises(ConstraintUnsupported, match="format 'regex' at #/properties/r/format"):
        writer_of({"properties": {"r": {"format": "regex"}}})
