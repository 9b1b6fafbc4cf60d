//! Tokenizes the text of a split: read by one thread, encoded on all cores, returned in order.

use std::sync::mpsc::{Receiver, sync_channel};

use rayon::prelude::*;

use super::measured::Measured;
use crate::corpus::{Corpus, Piece, Split};
use crate::documents::{Documents, Label, Packing};
use crate::source::Sink;
use crate::tokenizer::{Coverage, Run, Segment, Tokenizer};
use crate::tokens::Tokens;
use rustyflow_base::error::{Error, Result};

/// A part of a text, and its tokens.
pub(super) struct Part<'a> {
    /// Text of the token; empty for the separator between documents.
    pub text: &'a str,
    pub ids: &'a [u32],
    /// Whether the tokens are predicted, or only read.
    pub predicted: bool,
    /// The label of the document that ends with it.
    pub ends: Option<Label>,
}

/// Tokenizes a split in memory, and measures the coverage of its text; `packing` as in [`DataSpec`](super::DataSpec).
///
/// # Errors
/// Those of [`DataSpec::prepare`](super::DataSpec::prepare).
pub fn encode_split(
    corpus: &Corpus,
    split: Split,
    tokenizer: &Tokenizer,
    packing: Option<Packing>,
) -> Result<(Tokens, Coverage)> {
    if let Some(files) = &corpus.tokens {
        return files.split(split, tokenizer, packing);
    }
    let (mut all, mut documents, mut measured) = (vec![], Documents::default(), Measured::new());
    encode(corpus, split, tokenizer, &mut |part| {
        measured.add(tokenizer, &part)?;
        documents.add(part.ids.len(), part.predicted, part.ends);
        all.extend(part.ids);
        Ok(())
    })?;
    let packing = Packing::or_default(packing, documents.has_prompts());
    Ok((Tokens::from(all).in_documents(documents, packing)?, measured.coverage(tokenizer)?))
}

/// The first tokens of a split, at most `most`; reads no more text than needed.
///
/// # Errors
/// If the text cannot be read, or has characters that the tokenizer lacks.
pub fn encode_beginning(corpus: &Corpus, split: Split, tokenizer: &Tokenizer, most: usize) -> Result<Tokens> {
    if let Some(files) = &corpus.tokens {
        let (tokens, _) = files.split(split, tokenizer, None)?;
        return Ok(tokens.slice(0..most.min(tokens.len())));
    }
    let mut all = vec![];
    let result = encode(corpus, split, tokenizer, &mut |part| {
        all.extend(part.ids);
        if all.len() < most { Ok(()) } else { Err(Error::Invalid("not needed".into())) }
    });
    if all.len() < most {
        result?;
    }
    all.truncate(most);
    Ok(all.into())
}

/// An encoded segment, and the separator after it.
struct Encoded {
    segment: Segment,
    /// Of the document that ends with it.
    label: Label,
    /// The end of a conversation, which has its own mark.
    ends_chat: bool,
}

/// Hands over the text of a split and its tokens, in order, part by part. Returns how often it was cut where that may
/// have changed tokens.
pub(super) fn encode(
    corpus: &Corpus,
    split: Split,
    tokenizer: &Tokenizer,
    take: &mut dyn FnMut(Part) -> Result<()>,
) -> Result<usize> {
    let separator = corpus.has_documents().then(|| tokenizer.end_of_text().map(|(id, _)| id));
    // So many segments at once that no core waits for the slowest for long.
    let at_once = 4 * rayon::current_num_threads();
    let (sender, segments) = sync_channel::<Encoded>(at_once);
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let mut segmenter = tokenizer.segmenter();
            // It fails if nobody takes segments any more: then there is an error already.
            let send_end = |segment, label, ends_chat| {
                sender.send(Encoded { segment, label, ends_chat }).map_err(|_| Error::Invalid("not needed".into()))
            };
            let mut send = |segment| send_end(segment, Label::None, false);
            read(corpus, split, separator == Some(None), &mut |piece| {
                // A completion by itself would begin with a space that it does not have.
                segmenter.joins = matches!(piece, Piece::Turn(..)) || tokenizer.adds_space();
                match piece {
                    Piece::Text(text) => segmenter.push(text, true, &mut send),
                    Piece::Prompt(text) => segmenter.push(text, false, &mut send),
                    Piece::Turn(text, predicted) => segmenter.push(text, predicted, &mut send),
                    Piece::End(label) => segmenter.end_document(&mut |segment| send_end(segment, label, false)),
                    Piece::EndOfChat(label) => segmenter.end_document(&mut |segment| send_end(segment, label, true)),
                }
            })?;
            Ok(segmenter.forced)
        });
        let result = take_all(segments, at_once, tokenizer, separator.flatten(), take);
        let panicked = || Error::Invalid(format!("{}: reading it failed: a file is damaged", corpus.name));
        let read = reader.join().unwrap_or_else(|_| Err(panicked()));
        result.and(read)
    })
}

/// Reads a split; with `breaks`, every document ends in a line break.
fn read(corpus: &Corpus, split: Split, breaks: bool, sink: &mut Sink) -> Result<()> {
    let mut ends_line = true;
    corpus.read(split, &mut |piece| {
        match piece {
            Piece::Text(text) | Piece::Prompt(text) | Piece::Turn(text, _) => ends_line = text.ends_with('\n'),
            Piece::End(_) if breaks && !ends_line => sink(Piece::Text("\n"))?,
            Piece::End(_) | Piece::EndOfChat(_) => {}
        }
        sink(piece)
    })
}

fn take_all(
    segments: Receiver<Encoded>,
    at_once: usize,
    tokenizer: &Tokenizer,
    separator: Option<u32>,
    take: &mut dyn FnMut(Part) -> Result<()>,
) -> Result<()> {
    while let Ok(first) = segments.recv() {
        let batch: Vec<Encoded> = std::iter::once(first).chain(segments.iter().take(at_once - 1)).collect();
        let encode = |Encoded { segment, .. }: &Encoded| tokenizer.encode_runs(segment);
        let encoded: Vec<Result<(Vec<u32>, Vec<Run>)>> = batch.par_iter().map(encode).collect();
        for (Encoded { segment, label, ends_chat }, encoded) in batch.iter().zip(encoded) {
            let Segment { text, ends, .. } = segment;
            let (ids, runs) = encoded?;
            let separator = separator.filter(|_| *ends && !ends_chat);
            let label = ends.then_some(*label);
            let ends_here = label.filter(|_| separator.is_none());
            let last = runs.len() - 1;
            for (i, run) in runs.iter().enumerate() {
                let (text, ids) = (&text[run.text.clone()], &ids[run.ids.clone()]);
                take(Part { text, ids, predicted: run.predicted, ends: ends_here.filter(|_| i == last) })?;
            }
            if let Some(separator) = separator {
                take(Part { text: "", ids: &[separator], predicted: runs[last].predicted, ends: label })?;
            }
        }
    }
    Ok(())
}
