//! Reads UTF-16 with a byte order mark, which Windows writes, as UTF-8.

use std::io::{Error, ErrorKind, Read, Result};

/// Bytes that are read at once.
const PART_BYTES: usize = 1 << 16;

/// The same text in UTF-8, if it begins with a mark of UTF-16; otherwise the bytes as they are.
pub(super) fn as_utf8(mut reader: Box<dyn Read>) -> Result<Box<dyn Read>> {
    let mut beginning = vec![];
    // A whole mark of UTF-8 too, so that whoever looks for one finds it in the first part.
    reader.by_ref().take(3).read_to_end(&mut beginning)?;
    let is_big_endian = match beginning[..] {
        [0xff, 0xfe, ..] => false,
        [0xfe, 0xff, ..] => true,
        _ => return Ok(Box::new(std::io::Cursor::new(beginning).chain(reader))),
    };
    Ok(Box::new(Utf16 { reader, is_big_endian, kept: beginning.split_off(2), offset: 2, text: vec![], at: 0 }))
}

struct Utf16 {
    reader: Box<dyn Read>,
    is_big_endian: bool,
    /// Bytes of an incomplete character.
    kept: Vec<u8>,
    /// Where in the file they are.
    offset: u64,
    /// UTF-8 text, of which `at` bytes have been returned.
    text: Vec<u8>,
    at: usize,
}

impl Utf16 {
    /// Reads the next part. At the end of the file, there is no text after it.
    fn fill(&mut self) -> Result<()> {
        self.text.clear();
        self.at = 0;
        while self.text.is_empty() {
            let before = self.kept.len();
            self.reader.by_ref().take(PART_BYTES as u64).read_to_end(&mut self.kept)?;
            let is_end = self.kept.len() == before;
            if is_end && before == 0 {
                return Ok(());
            }
            let unit = |pair: &[u8]| match self.is_big_endian {
                true => u16::from_be_bytes([pair[0], pair[1]]),
                false => u16::from_le_bytes([pair[0], pair[1]]),
            };
            let mut units: Vec<u16> = self.kept.chunks_exact(2).map(unit).collect();
            // The second half of a pair may be in the next part.
            if !is_end && units.last().is_some_and(|last| (0xd800..0xdc00).contains(last)) {
                units.pop();
            }
            let mut used = 0;
            for char in char::decode_utf16(units) {
                let char = char.map_err(|_| self.wrong(used))?;
                used += 2 * char.len_utf16();
                self.text.extend(char.encode_utf8(&mut [0; 4]).as_bytes());
            }
            if is_end && used < self.kept.len() {
                return Err(self.wrong(used));
            }
            self.kept.drain(..used);
            self.offset += used as u64;
        }
        Ok(())
    }

    fn wrong(&self, used: usize) -> Error {
        Error::new(ErrorKind::InvalidData, format!("not UTF-16 at byte {}", self.offset + used as u64))
    }
}

impl Read for Utf16 {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        if self.at == self.text.len() {
            self.fill()?;
        }
        let count = buffer.len().min(self.text.len() - self.at);
        buffer[..count].copy_from_slice(&self.text[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: Vec<u8>) -> Result<String> {
        let mut text = String::new();
        as_utf8(Box::new(std::io::Cursor::new(bytes)))?.read_to_string(&mut text)?;
        Ok(text)
    }

    #[test]
    fn text_with_a_mark_is_read_and_damage_is_told_with_its_place() {
        // Long enough that a pair of units lies across two parts.
        let text = format!("a{}ö", "🦆".repeat(PART_BYTES / 4));
        let little: Vec<u8> = [0xfeff].into_iter().chain(text.encode_utf16()).flat_map(u16::to_le_bytes).collect();
        let big: Vec<u8> = [0xfeff].into_iter().chain(text.encode_utf16()).flat_map(u16::to_be_bytes).collect();
        assert!(read(little.clone()).unwrap() == text && read(big).unwrap() == text);
        assert_eq!(read(vec![0xff, 0xfe]).unwrap(), "");
        assert_eq!(read(b"plain".to_vec()).unwrap(), "plain");
        assert_eq!(read(vec![]).unwrap(), "");
        let lone = [&[0xff, 0xfe, b'a', 0][..], &[0, 0xdc]].concat();
        assert!(read(lone).unwrap_err().to_string().contains("byte 4"));
        assert!(read(little[..little.len() - 1].to_vec()).unwrap_err().to_string().contains("not UTF-16 at byte"));
    }
}
