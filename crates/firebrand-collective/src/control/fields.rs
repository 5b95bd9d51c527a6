/// Reads the fields of a message one after the other. Integers are little-endian.
pub(crate) struct Fields<'a>(&'a [u8]);

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub &'static str);

const SHORT: Malformed = Malformed("it ends too early");

impl<'a> Fields<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The number of bytes that are left.
    pub fn left(&self) -> usize {
        self.0.len()
    }

    /// A number of `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (array, rest) = self.0.split_first_chunk().ok_or(SHORT)?;
        self.0 = rest;
        Ok(*array)
    }

    pub fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    pub fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub fn i64(&mut self) -> Result<i64, Malformed> {
        Ok(i64::from_le_bytes(self.array()?))
    }

    /// Bytes behind their length.
    pub fn bytes(&mut self, max: usize) -> Result<&'a [u8], Malformed> {
        let length = self.u32()? as usize;
        if length > max {
            return Err(Malformed("a field is too long"));
        }
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(SHORT)?;
        self.0 = rest;
        Ok(bytes)
    }

    /// Text behind its length in bytes.
    pub fn text(&mut self, max: usize) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.bytes(max)?).map_err(|_| Malformed("a text is not UTF-8"))
    }

    /// The message ends here.
    pub fn end(self) -> Result<(), Malformed> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(Malformed("there are bytes behind its end"))
        }
    }
}
