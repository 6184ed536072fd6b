//! Whole numbers in as few bytes as they need: seven bits a byte, lowest first, the top bit set on all but the last.

/// A number of 64 bits needs at most this many bytes.
const MAX_BYTES: usize = 10;

/// Appends a number.
pub(crate) fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7F) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Takes a number off the front. `None`: there is none.
pub(crate) fn take(input: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for at in 0..MAX_BYTES {
        let byte = *input.get(at)?;
        let bits = u64::from(byte & 0x7F);
        value |= bits.checked_shl(7 * at as u32)?;
        if at == MAX_BYTES - 1 && byte > 1 {
            return None;
        }
        if byte & 0x80 == 0 {
            *input = &input[at + 1..];
            return Some(value);
        }
    }
    None
}

/// The same, for a number that must fit a smaller type.
pub(crate) fn take_as<T: TryFrom<u64>>(input: &mut &[u8]) -> Option<T> {
    T::try_from(take(input)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_and_bad_ones_do_not() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX] {
            let mut out = Vec::new();
            put(&mut out, value);
            out.push(77);
            let mut input = out.as_slice();
            assert_eq!(take(&mut input), Some(value));
            assert_eq!(input, [77]);
        }
        assert_eq!(take(&mut &[0x80u8, 0x80][..]), None);
        assert_eq!(take(&mut &[0xFFu8; 11][..]), None);
        assert_eq!(take_as::<u16>(&mut &[0x80u8, 0x80, 0x04][..]), None);
    }
}
