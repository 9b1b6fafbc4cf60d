//! Protobuf's wire format: what other programs read is encoded here, field by field.
//!
//! Format: <https://protobuf.dev/programming-guides/encoding/>

const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const BYTES: u32 = 2;
const FIXED32: u32 = 5;

/// An encoded message, which grows by a field at a time.
#[derive(Debug, Clone, Default)]
pub struct Message(Vec<u8>);

impl Message {
    /// A field of an integer type without zigzag, a bool or an enum.
    pub fn varint(mut self, field: u32, value: u64) -> Message {
        self.tag(field, VARINT);
        self.put_varint(value);
        self
    }

    pub fn double(mut self, field: u32, value: f64) -> Message {
        self.tag(field, FIXED64);
        self.0.extend(value.to_le_bytes());
        self
    }

    pub fn float(mut self, field: u32, value: f32) -> Message {
        self.tag(field, FIXED32);
        self.0.extend(value.to_le_bytes());
        self
    }

    /// A string or bytes.
    pub fn bytes(mut self, field: u32, value: &[u8]) -> Message {
        self.tag(field, BYTES);
        self.put_varint(value.len() as u64);
        self.0.extend(value);
        self
    }

    /// A message within this one.
    pub fn message(self, field: u32, value: &Message) -> Message {
        self.bytes(field, &value.0)
    }

    pub fn encoded(&self) -> &[u8] {
        &self.0
    }

    fn tag(&mut self, field: u32, wire_type: u32) {
        self.put_varint(u64::from(field << 3 | wire_type));
    }

    fn put_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_encoded_as_protobuf_specifies() {
        // The examples of the encoding's page: 150 in field 1, "testing" in field 2, the first as field 3 of another.
        let number = Message::default().varint(1, 150);
        assert_eq!(number.encoded(), [0x08, 0x96, 0x01]);
        assert_eq!(Message::default().bytes(2, b"testing").encoded(), b"\x12\x07testing");
        assert_eq!(Message::default().message(3, &number).encoded(), [0x1a, 0x03, 0x08, 0x96, 0x01]);
        // Numbers of fields from 16 on take two bytes; what is fixed is little-endian.
        assert_eq!(Message::default().varint(16, 0).encoded(), [0x80, 0x01, 0x00]);
        assert_eq!(Message::default().double(1, 1.0).encoded(), [0x09, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f]);
        assert_eq!(Message::default().float(2, 1.0).encoded(), [0x15, 0, 0, 0x80, 0x3f]);
        let largest = Message::default().varint(1, u64::MAX);
        assert_eq!(largest.encoded(), [[0x08].as_slice(), &[0xff; 9], &[0x01]].concat());
    }
}
