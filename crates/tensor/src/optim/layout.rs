//! Where the parameters of a module lie in flat arenas: in groups of those that are updated alike, in each those that
//! decay before those that do not, and after all groups what is frozen.

use crate::nn::{LinearLayout, Module, Parameter};
use crate::tensor::{parts_between, rows_in_binding};
use crate::{DType, Error, Result, Shape, Tensor};
use rayon::prelude::*;
use std::collections::BTreeSet;
use std::ops::Range;

/// Tensors start on multiples of this many elements: a block of moments of 8 bits (`int8.rs`), and 512 bytes of f16;
/// every device accepts 256 as a binding's offset.
pub(super) const ALIGN: usize = 256;

/// Where one parameter lies.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    pub name: String,
    pub shape: Shape,
    /// f32; of a frozen parameter perhaps f16, or quantized, which lies in no arena.
    pub dtype: DType,
    /// Whether it has a gradient and is updated.
    pub trainable: bool,
    /// Elements from the start of the arena of its type; 0 if there is none.
    pub offset: usize,
    /// Of the weight of a linear layer, how it is stored.
    pub linear: Option<LinearLayout>,
}

impl Entry {
    /// Its elements in the arena of its type.
    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset.saturating_add(self.shape.elements())
    }
}

/// A part of the arenas whose parameters are updated alike, in one buffer of each.
#[derive(Debug, Clone, PartialEq)]
pub struct Segment {
    /// The number that was given to its parameters.
    pub group: usize,
    /// Its elements.
    pub range: Range<usize>,
    /// Where in it those end that weight decay applies to: matrices and embeddings, which take part in matmuls; not
    /// biases and the scales of norms (nanoGPT).
    pub decay_end: usize,
}

/// Where every parameter of a module is to lie, and how long the arenas are, in elements.
pub(super) struct Layout {
    pub entries: Vec<Entry>,
    pub segments: Vec<Segment>,
    pub trainable_len: usize,
    pub f32_len: usize,
    pub f16_len: usize,
    /// Where the arenas of f32 parameters continue in the next buffer; and that of f16.
    pub f32_cuts: Vec<usize>,
    pub f16_cuts: Vec<usize>,
}

impl Layout {
    /// At most `most` elements per buffer and, if given, `in_segment` per segment; a larger parameter has its own. A
    /// matrix that is not a linear layer's lies in several if it has more than `bindable`.
    ///
    /// # Errors
    /// If there is nothing to train, or a parameter is f16 that is not frozen.
    pub fn of(
        module: &mut dyn Module,
        group_of: &dyn Fn(&str, &Parameter) -> usize,
        [most, bindable]: [usize; 2],
        in_segment: Option<usize>,
    ) -> Result<Layout> {
        let mut parameters: Vec<Grouped> = Vec::new();
        module.visit_parameters("", &mut |name, parameter| {
            parameters.push((name.to_string(), parameter.clone(), group_of(name, parameter)));
        });
        let in_f16 = |parameter: &Parameter| parameter.dtype() != DType::F32;
        if let Some((name, ..)) = parameters.iter().find(|(_, p, _)| in_f16(p) && p.is_trainable()) {
            return Err(Error::Invalid(format!("{name} is stored as f16 only: it can be used, but not be trained")));
        }
        // Quantized ones, which are frozen, stay tensors of their own.
        let (quantized, parameters): (Vec<_>, Vec<_>) =
            parameters.into_iter().partition(|(_, parameter, _)| parameter.dtype().is_quantized());
        let mut entries = Vec::new();
        let (groups, trainable_len) = place_trained(&mut entries, &parameters);
        if trainable_len == 0 {
            return Err(Error::Invalid("there is nothing to train: every parameter is frozen".into()));
        }
        let f32_len = place(&mut entries, &parameters, trainable_len, &|p, _| !p.is_trainable() && !in_f16(p));
        let f16_len = place(&mut entries, &parameters, 0, &|p, _| !p.is_trainable() && in_f16(p));
        entries.extend(quantized.iter().map(|(name, parameter, _)| Entry {
            name: name.clone(),
            shape: parameter.layout_shape(),
            dtype: parameter.dtype(),
            trainable: false,
            offset: 0,
            linear: parameter.linear.clone(),
        }));
        let cuts_of = |dtype| cuts(of_dtype(&entries, dtype), 0, most, bindable);
        let (f32_cuts, f16_cuts) = (cuts_of(DType::F32), cuts_of(DType::F16));
        let buffers = parts_between(&f32_cuts, &(0..f32_len));
        let segments = groups.iter().flat_map(|group: &Segment| buffers.iter().filter_map(|b| group.within(b)));
        let mut segments: Vec<Segment> = segments.collect();
        if let Some(most) = in_segment {
            segments = segments.iter().flat_map(|segment: &Segment| cut(segment, &entries, most)).collect();
        }
        Ok(Layout { entries, segments, trainable_len, f32_len, f16_len, f32_cuts, f16_cuts })
    }
}

/// A parameter with its name and the number of its group.
type Grouped = (String, Parameter, usize);

/// Appends the entries of the parameters that belong to an arena of `end` elements so far; returns its new length.
fn place(
    entries: &mut Vec<Entry>,
    parameters: &[Grouped],
    mut end: usize,
    belongs: &dyn Fn(&Parameter, usize) -> bool,
) -> usize {
    for (name, parameter, _) in parameters.iter().filter(|(_, parameter, group)| belongs(parameter, *group)) {
        let (name, shape, dtype) = (name.clone(), parameter.shape().clone(), parameter.dtype());
        let (trainable, linear) = (parameter.is_trainable(), parameter.linear.clone());
        entries.push(Entry { name, shape, dtype, trainable, offset: end, linear });
        end += parameter.len().next_multiple_of(ALIGN);
    }
    end
}

/// Appends the entries of all trained parameters; returns a segment for each group, and their length together.
fn place_trained(entries: &mut Vec<Entry>, parameters: &[Grouped]) -> (Vec<Segment>, usize) {
    let groups: BTreeSet<usize> = parameters.iter().map(|(.., group)| *group).collect();
    let (mut segments, mut end) = (Vec::new(), 0);
    for group in groups {
        let start = end;
        let decays = |p: &Parameter, of: usize| of == group && p.is_trainable() && p.shape().len() > 1;
        let does_not = |p: &Parameter, of: usize| of == group && p.is_trainable() && p.shape().len() <= 1;
        let decay_end = place(entries, parameters, start, &decays);
        end = place(entries, parameters, decay_end, &does_not);
        segments.push(Segment { group, range: start..end, decay_end });
    }
    (segments, end)
}

/// The entries that are stored in this type.
fn of_dtype(entries: &[Entry], dtype: DType) -> impl Iterator<Item = &Entry> {
    entries.iter().filter(move |entry| entry.dtype == dtype)
}

/// The parts of a segment with at most `most` elements each; a larger parameter has its own.
fn cut(segment: &Segment, entries: &[Entry], most: usize) -> Vec<Segment> {
    // Vectors, which all layers have, apart from matrices.
    let halves = [segment.range.start..segment.decay_end, segment.decay_end..segment.range.end];
    let parts = |range: Range<usize>| {
        let trained = of_dtype(entries, DType::F32).filter(|entry| entry.trainable && range.contains(&entry.offset));
        parts_between(&cuts(trained, range.start, most, usize::MAX), &range)
    };
    halves.into_iter().flat_map(parts).filter_map(|part| segment.within(&part)).collect()
}

/// Where parameters in the order of their places, the first at `begin`, continue in the next buffer, so that none has
/// more than so many elements; and where tables do, so that each part can be bound.
fn cuts<'a>(entries: impl Iterator<Item = &'a Entry>, mut begin: usize, most: usize, bindable: usize) -> Vec<usize> {
    let mut cuts = Vec::new();
    for entry in entries {
        let is_table = entry.linear.is_none();
        let rows = rows_in_binding(&entry.shape, bindable).filter(|_| is_table);
        if (entry.range().end - begin > most || rows.is_some()) && entry.offset > begin {
            begin = entry.offset;
            cuts.push(begin);
        }
        for row in rows.into_iter().flat_map(|rows| (rows..entry.shape[0]).step_by(rows)) {
            begin = entry.offset + row * entry.shape[1];
            cuts.push(begin);
        }
    }
    cuts
}

/// The tensor with the name and shape of an entry.
///
/// # Errors
/// If there is none.
pub(super) fn find<'a>(tensors: &'a [(String, Tensor)], entry: &Entry) -> Result<&'a Tensor> {
    let same = |(name, tensor): &&(String, Tensor)| *name == entry.name && *tensor.shape() == entry.shape;
    let found = tensors.iter().find(same).map(|(_, tensor)| tensor);
    found.ok_or_else(|| {
        let (name, shape) = (&entry.name, &entry.shape);
        Error::Invalid(format!("the other module has no parameter {name} of shape {shape}"))
    })
}

/// The values of the parameters that are stored in this type, each where its entry says.
///
/// # Errors
/// If one of them is missing, or cannot be read.
pub(super) fn flatten(entries: &[Entry], dtype: DType, len: usize, tensors: &[(String, Tensor)]) -> Result<Vec<f32>> {
    let mut flat = vec![0.0; len];
    let (mut rest, mut at, mut places) = (&mut flat[..], 0, Vec::new());
    for entry in entries.iter().filter(|entry| entry.dtype == dtype) {
        let tensor = find(tensors, entry)?;
        // Entries of one type are in the order of their places.
        let place = std::mem::take(&mut rest).split_at_mut(entry.offset - at).1;
        let (place, others) = place.split_at_mut(tensor.len());
        (rest, at) = (others, entry.offset + tensor.len());
        places.push((place, tensor));
    }
    // By all threads: new memory is slow at first.
    places.into_par_iter().try_for_each(|(place, tensor)| -> Result<()> {
        place.copy_from_slice(&tensor.to_f32()?);
        Ok(())
    })?;
    Ok(flat)
}
