//! The metadata of a GGUF file: keys and values of a few types.

/// A value, or several of one type.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    Text(String),
    I32s(Vec<i32>),
    F32s(Vec<f32>),
    Texts(Vec<String>),
    /// A number or an array of another type.
    Other,
}

/// Numbers of types in a file (`gguf_metadata_value_type`).
pub(super) const U32: u32 = 4;
pub(super) const I32: u32 = 5;
pub(super) const F32: u32 = 6;
pub(super) const BOOL: u32 = 7;
pub(super) const STRING: u32 = 8;
pub(super) const ARRAY: u32 = 9;

/// The bytes of a number of a type that has a fixed size.
pub(super) fn scalar_bytes(code: u32) -> Option<usize> {
    match code {
        // u8, i8, bool
        0 | 1 | BOOL => Some(1),
        // u16, i16
        2 | 3 => Some(2),
        U32 | I32 | F32 => Some(4),
        // u64, i64, f64
        10..=12 => Some(8),
        _ => None,
    }
}

pub(super) fn write_text(text: &str, bytes: &mut Vec<u8>) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}

impl Value {
    /// Adds its type and itself to `bytes`.
    ///
    /// # Panics
    /// On [`Value::Other`], which nobody writes.
    pub(super) fn write(&self, bytes: &mut Vec<u8>) {
        let begin_array = |code: u32, count: usize, bytes: &mut Vec<u8>| {
            bytes.extend(ARRAY.to_le_bytes());
            bytes.extend(code.to_le_bytes());
            bytes.extend((count as u64).to_le_bytes());
        };
        let scalar = |code: u32, value: [u8; 4], bytes: &mut Vec<u8>| {
            bytes.extend(code.to_le_bytes());
            bytes.extend(value);
        };
        match self {
            Value::U32(value) => scalar(U32, value.to_le_bytes(), bytes),
            Value::I32(value) => scalar(I32, value.to_le_bytes(), bytes),
            Value::F32(value) => scalar(F32, value.to_le_bytes(), bytes),
            Value::Bool(value) => {
                bytes.extend(BOOL.to_le_bytes());
                bytes.push(u8::from(*value));
            }
            Value::Text(text) => {
                bytes.extend(STRING.to_le_bytes());
                write_text(text, bytes);
            }
            Value::I32s(values) => {
                begin_array(I32, values.len(), bytes);
                values.iter().for_each(|value| bytes.extend(value.to_le_bytes()));
            }
            Value::F32s(values) => {
                begin_array(F32, values.len(), bytes);
                values.iter().for_each(|value| bytes.extend(value.to_le_bytes()));
            }
            Value::Texts(texts) => {
                begin_array(STRING, texts.len(), bytes);
                texts.iter().for_each(|text| write_text(text, bytes));
            }
            Value::Other => unreachable!("only what was read is of another type"),
        }
    }
}
