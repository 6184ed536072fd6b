//! Reading and writing little-endian fields, with every length checked before it is used.

/// The bytes end before the field does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Short;

/// Fields read one after the other from a slice.
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn take(&mut self, length: usize) -> Result<&'a [u8], Short> {
        let (head, rest) = self.0.split_at_checked(length).ok_or(Short)?;
        self.0 = rest;
        Ok(head)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Short> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(Short)?;
        self.0 = rest;
        Ok(*head)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Short> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Short> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Short> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Fields appended to a buffer.
pub(crate) trait Output {
    fn put_u32_le(&mut self, value: u32);
    fn put_u64_le(&mut self, value: u64);
}

impl Output for Vec<u8> {
    fn put_u32_le(&mut self, value: u32) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn put_u64_le(&mut self, value: u64) {
        self.extend_from_slice(&value.to_le_bytes());
    }
}

/// Writes a field into a fixed header.
pub(crate) fn set<const N: usize>(target: &mut [u8], at: usize, value: [u8; N]) {
    target[at..at + N].copy_from_slice(&value);
}
