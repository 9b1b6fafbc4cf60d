//! Moments in 8 bits: block-wise dynamic quantization (Dettmers et al. 2022).
//!
//! A block of 256 moments x is stored as its largest magnitude, absmax, in f32 and a code of 8 bits for each: the index
//! of the number in a table that is nearest to x / absmax ([`Codebook`]).
//!
//! The moments of a block lie in one record: for each moment 256 codes and absmax, 260 bytes. An update reads a record,
//! computes with f32 and writes it.

use super::layout::ALIGN;
use crate::cpu::vectorized;
use crate::gpu::Value;
use crate::tensor::{CELLS, Codebook, DType, FIRST_CELL};
use crate::{Device, Result, Tensor};
use rayon::prelude::*;
use std::sync::LazyLock;

/// How an optimizer stores its moments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MomentDtype {
    #[default]
    F32,
    /// 8 bits, with one f32 for each block of 256.
    Int8,
}

/// Moments that share absmax. A parameter has whole blocks.
pub(super) const BLOCK: usize = 256;
const _: () = assert!(ALIGN.is_multiple_of(BLOCK));

/// Words of u32 that one moment takes in a record.
pub(super) const RECORD_WORDS: usize = BLOCK / 4 + 1;
pub(super) const RECORD_BYTES: usize = 4 * RECORD_WORDS;

/// Of moments with both signs, and of means of squares.
static TABLES: LazyLock<[Codebook; 2]> = LazyLock::new(|| [Codebook::new(true), Codebook::new(false)]);

/// The table for the moment of this name.
pub(super) fn table_of(moment: &str) -> &'static Codebook {
    &TABLES[usize::from(is_square(moment))]
}

fn is_square(moment: &str) -> bool {
    matches!(moment, "exp_avg_sq" | "square_avg")
}

impl Codebook {
    /// Reads the moments of a block from its part of a record.
    pub fn decode(&self, record: &[u32], moments: &mut [f32]) {
        let (codes, absmax) = record.split_at(BLOCK / 4);
        let (codes, absmax): (&[u8], _) = (bytemuck::cast_slice(codes), f32::from_bits(absmax[0]));
        vectorized(
            #[inline(always)]
            || {
                for (x, code) in moments.iter_mut().zip(codes) {
                    *x = self.numbers[usize::from(*code)] * absmax;
                }
            },
        );
    }

    /// Writes the moments of a block, which are finite, to its part of a record.
    pub fn encode(&self, moments: &[f32], record: &mut [u32]) {
        let (codes, absmax) = record.split_at_mut(BLOCK / 4);
        let codes: &mut [u8] = bytemuck::cast_slice_mut(codes);
        absmax[0] = vectorized(
            #[inline(always)]
            || {
                // Magnitudes are ordered as their bits are.
                let mut largest = 0;
                for x in moments {
                    largest = largest.max(x.to_bits() & 0x7fff_ffff);
                }
                let divisor = if largest == 0 { 1.0 } else { f32::from_bits(largest) };
                for (code, x) in codes.iter_mut().zip(moments) {
                    *code = self.nearest(x / divisor);
                }
                largest
            },
        );
    }
}

/// Words of the records of so many elements with so many moments.
pub(super) fn record_len(elements: usize, moments: usize) -> usize {
    elements.div_ceil(BLOCK) * moments * RECORD_WORDS
}

/// The moments of this name in records of `names`.
pub(super) fn decoded(records: &[u32], names: &[&str], name: &str) -> Vec<f32> {
    let own = names.iter().position(|own| *own == name).unwrap_or(0);
    let mut moments = vec![0.0; records.len() / (names.len() * RECORD_WORDS) * BLOCK];
    let blocks = moments.par_chunks_mut(BLOCK).zip(records.par_chunks(names.len() * RECORD_WORDS));
    blocks.for_each(|(moments, record)| table_of(name).decode(&record[own * RECORD_WORDS..][..RECORD_WORDS], moments));
    moments
}

/// Records of moments, each with the name of what it is, all of as many elements.
pub(super) fn encoded(moments: &[(&str, Vec<f32>)]) -> Vec<u32> {
    let elements = moments.first().map_or(0, |(_, moment)| moment.len());
    let mut records = vec![0; record_len(elements, moments.len())];
    records.par_chunks_mut(moments.len().max(1) * RECORD_WORDS).enumerate().for_each(|(block, record)| {
        for ((name, moment), part) in moments.iter().zip(record.chunks_mut(RECORD_WORDS)) {
            table_of(name).encode(&moment[block * BLOCK..][..BLOCK], part);
        }
    });
    records
}

/// What kernels read of both tables, as words of u32: the numbers of the one and of the other, then their cells, four
/// in a word.
///
/// # Errors
/// If the device has no memory left.
pub(super) fn tables_on(device: &Device) -> Result<Tensor> {
    let mut words: Vec<u32> = TABLES.iter().flat_map(|table| table.numbers.map(f32::to_bits)).collect();
    for Codebook { cells, .. } in TABLES.iter() {
        let four = |cells: &[u32]| cells.iter().enumerate().fold(0, |word, (i, code)| word | code << (8 * i));
        words.extend(cells[..CELLS].chunks(4).map(four));
    }
    debug_assert_eq!(words.len(), TABLE_WORDS);
    let tables = Tensor::zeros([words.len()], DType::U32, device)?;
    tables.write_bytes(bytemuck::cast_slice(&words))?;
    Ok(tables)
}

const TABLE_WORDS: usize = 2 * (256 + CELL_WORDS);
const CELL_WORDS: usize = CELLS.div_ceil(4);

/// What `shaders/int8_moments.wgsl` is told.
pub(super) fn shader_values() -> [(&'static str, Value); 3] {
    [("record_words", RECORD_WORDS.into()), ("first_cell", FIRST_CELL.into()), ("cell_words", CELL_WORDS.into())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optim::testing::{KINDS, Net, optimizer_in};

    /// Against a search through the whole table, at and beside every border between codes.
    #[test]
    fn codes_are_those_of_the_nearest_numbers() {
        for table in TABLES.iter() {
            assert!(table.numbers.is_sorted() && table.numbers[usize::from(table.zero)] == 0.0);
            let borders = table.numbers.windows(2).map(|pair| 0.5 * (pair[0] + pair[1]));
            let beside = |x: f32| [x.next_down(), x, x.next_up(), 0.75 * x, 1.01 * x];
            let tried = borders.chain(table.numbers).flat_map(beside).chain([0.0, -0.0, 1.0, -1.0, 1e-30]);
            for x in tried.filter(|x| (-1.0..=1.0).contains(x) && (table.zero > 0 || *x >= 0.0)) {
                let distance = |code: u8| (f64::from(table.numbers[usize::from(code)]) - f64::from(x)).abs();
                let nearest = (0..=255).map(distance).fold(f64::INFINITY, f64::min);
                let (code, found) = (table.nearest(x), distance(table.nearest(x)));
                // A border is rounded to f32.
                assert!(found <= nearest + f64::from(x.abs()) * 2e-7, "{x}: {code}, off by {found}, not {nearest}");
            }
        }
    }

    #[test]
    fn zeros_stay_zeros() {
        for name in ["exp_avg", "exp_avg_sq"] {
            let mut moments = [1.0; BLOCK];
            table_of(name).decode(&[0; RECORD_WORDS], &mut moments);
            assert!(moments.iter().all(|x| *x == 0.0));
            let records = encoded(&[(name, vec![0.0; 2 * BLOCK])]);
            assert_eq!(decoded(&records, &[name], name), vec![0.0; 2 * BLOCK]);
        }
    }

    /// A GPU may round a division otherwise: codes next to each other at a border.
    #[test]
    fn gpus_write_the_records_of_the_cpu() {
        let Some(gpu) = crate::gpu::gpu_for_tests().map(Device::Gpu) else { return };
        for kind in KINDS {
            let records = [&Device::Cpu, &gpu].map(|device| {
                let (arena, mut optimizer) = optimizer_in(&mut Net::of_width(1, 40), device, kind, MomentDtype::Int8);
                for step in 0..4 {
                    let gradient = |i: usize| ((i * 7 + step * 13) % 101) as f32 / 50.0 - 1.0;
                    let gradients: Vec<f32> = (0..arena.trainable_len()).map(|i| gradient(i).powi(3)).collect();
                    arena.gradients().unwrap().write_bytes(bytemuck::cast_slice(&gradients)).unwrap();
                    optimizer.step(&arena, 0.01).unwrap();
                }
                let records = optimizer.moments().into_iter().map(|(_, tensor)| tensor.to_u32().unwrap());
                records.collect::<Vec<_>>().concat()
            });
            let (mut others, mut all) = (0, 0);
            for (of_cpu, of_gpu) in records[0].chunks(RECORD_WORDS).zip(records[1].chunks(RECORD_WORDS)) {
                let [a, b] = [of_cpu, of_gpu].map(|record| f32::from_bits(record[BLOCK / 4]));
                assert!((a - b).abs() <= 1e-5 * a, "{kind:?}: {a} and {b}");
                let codes = |record: &[u32]| bytemuck::cast_slice::<u32, u8>(&record[..BLOCK / 4]).to_vec();
                for (a, b) in codes(of_cpu).into_iter().zip(codes(of_gpu)) {
                    assert!(a.abs_diff(b) <= 1, "{kind:?}: {a} and {b}");
                    (others, all) = (others + usize::from(a != b), all + 1);
                }
            }
            assert!(all > 5000 && 200 * others < all, "{kind:?}: {others} of {all} codes differ");
        }
    }
}
