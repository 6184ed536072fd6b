//! Bytes in reply texts, written the way RabbitMQ's clients and logs know them: as Erlang prints a binary.
//!
//! One thing is left out on purpose: Erlang breaks a term that does not fit 80 columns over several lines, so that some
//! of RabbitMQ's reply texts have line breaks in them. Ours stay on one line.

use std::fmt::Write;

/// Bytes of a payload that a reply text quotes at most.
const SNIPPET_BYTES: usize = 16;
/// Numbers that [`numbers`] writes at most: more than a reply text of 255 bytes can show, even if each has one digit.
const MAX_NUMBERS: usize = 128;

/// `all octets = <<...>>` or, of longer payloads, `first 16 octets = <<...>>`.
pub(crate) fn snippet(payload: &[u8]) -> String {
    match payload.get(..SNIPPET_BYTES) {
        Some(first) if payload.len() > SNIPPET_BYTES => format!("first 16 octets = {}", printed(first)),
        _ => format!("all octets = {}", printed(payload)),
    }
}

/// The octets as decimal numbers, `<<0,9,97>>`, whatever they are. Cut after what no reply text has room for.
pub(crate) fn numbers(octets: &[u8]) -> String {
    let mut text = String::with_capacity(4 + 4 * octets.len().min(MAX_NUMBERS));
    text.push_str("<<");
    for (index, octet) in octets.iter().take(MAX_NUMBERS).enumerate() {
        let comma = if index == 0 { "" } else { "," };
        // Writing to a String cannot fail.
        let _ = write!(text, "{comma}{octet}");
    }
    text.push_str(">>");
    text
}

/// The octets as a string, `<<"abc">>`, if all of them are printable in Latin-1, otherwise as numbers.
fn printed(octets: &[u8]) -> String {
    if octets.is_empty() || !octets.iter().all(|octet| is_printable(*octet)) {
        return numbers(octets);
    }
    let mut text = String::from("<<\"");
    for octet in octets {
        match octet {
            b'"' => text.push_str("\\\""),
            b'\\' => text.push_str("\\\\"),
            b'\n' => text.push_str("\\n"),
            b'\r' => text.push_str("\\r"),
            b'\t' => text.push_str("\\t"),
            0x08 => text.push_str("\\b"),
            0x0B => text.push_str("\\v"),
            0x0C => text.push_str("\\f"),
            0x1B => text.push_str("\\e"),
            other => text.push(char::from(*other)),
        }
    }
    text.push_str("\">>");
    text
}

fn is_printable(octet: u8) -> bool {
    matches!(octet, 0x20..=0x7E | 0xA0..=0xFF | 0x08..=0x0D | 0x1B)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn octets_read_as_erlang_prints_them() {
        assert_eq!(printed(b""), "<<>>");
        assert_eq!(printed(b"abc"), "<<\"abc\">>");
        assert_eq!(printed(b"a\"b\\c\n\t\x1b\x08\x0c\x0b"), "<<\"a\\\"b\\\\c\\n\\t\\e\\b\\f\\v\">>");
        assert_eq!(printed(&[97, 200]), "<<\"a\u{c8}\">>");
        assert_eq!(printed(&[97, 159]), "<<97,159>>");
        assert_eq!(printed(&[0, 60, 127]), "<<0,60,127>>");
        assert_eq!(numbers(b"abc"), "<<97,98,99>>");
    }

    #[test]
    fn long_payloads_are_quoted_by_their_first_16_octets() {
        assert_eq!(snippet(&[1; 16]), format!("all octets = {}", numbers(&[1; 16])));
        assert_eq!(snippet(&[1; 17]), format!("first 16 octets = {}", numbers(&[1; 16])));
    }

    #[test]
    fn numbers_of_a_megabyte_stay_short() {
        assert!(numbers(&vec![255; 1 << 20]).len() < 600);
    }
}
