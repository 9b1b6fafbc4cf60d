//! Token windows for evaluation.

use super::documents::Packing;
use super::loader::{IGNORE_INDEX, check_length};
use super::rows::{Row, Rows};
use super::tokens::Tokens;
use rustyflow_base::error::{Error, Result};

/// Windows over a whole split in order, in which every target counts exactly once.
///
/// Windows start `stride` tokens apart. The first `context - stride` targets of each window but the first are
/// [`IGNORE_INDEX`]: these tokens are only context. `stride == context` is the fastest; a smaller stride gives every
/// target at least `context - stride` tokens of context.
///
/// The last window is padded with id 0 and [`IGNORE_INDEX`]. For packed documents, the windows are rows of whole
/// documents, and `stride` has no effect. Masked tokens have [`IGNORE_INDEX`] too.
///
/// # Errors
/// Fewer than 2 tokens, or a stride that is 0 or above `context`.
pub fn eval_windows(tokens: &Tokens, context: usize, stride: usize) -> Result<EvalWindows<'_>> {
    check_length(tokens.len())?;
    if stride == 0 || stride > context {
        return Err(Error::Invalid(format!(
            "the stride of an evaluation must be between 1 and the context of {context}, got {stride}"
        )));
    }
    if context.checked_mul(2).is_none_or(|ids| Vec::<u32>::new().try_reserve_exact(ids).is_err()) {
        return Err(Error::Invalid(format!("no memory holds windows of {context} tokens")));
    }
    Ok(EvalWindows(match tokens.packing() {
        Packing::Stream => Kind::Stream(Stream { tokens, context, stride, start: 0, counted: 0 }),
        _ => Kind::Rows { rows: Rows::new(tokens.clone(), context)?, next: 0 },
    }))
}

/// The iterator that [`eval_windows`] returns.
pub struct EvalWindows<'a>(Kind<'a>);

enum Kind<'a> {
    Stream(Stream<'a>),
    Rows { rows: Rows, next: usize },
}

impl Iterator for EvalWindows<'_> {
    type Item = Row;

    fn next(&mut self) -> Option<Row> {
        match &mut self.0 {
            Kind::Stream(stream) => stream.next(),
            Kind::Rows { rows, next } => {
                let row = (*next < rows.len()).then(|| rows.row(*next));
                *next += 1;
                row
            }
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = match &self.0 {
            Kind::Stream(stream) => stream.left(),
            Kind::Rows { rows, next } => rows.len().saturating_sub(*next),
        };
        (left, Some(left))
    }
}

impl ExactSizeIterator for EvalWindows<'_> {}

/// Windows over one text.
struct Stream<'a> {
    tokens: &'a Tokens,
    context: usize,
    stride: usize,
    start: usize,
    /// Inputs whose targets have been returned.
    counted: usize,
}

impl Stream<'_> {
    fn next(&mut self) -> Option<Row> {
        let inputs = self.tokens.len() - 1;
        if self.counted == inputs {
            return None;
        }
        let end = (self.start + self.context).min(inputs);
        let mut ids = vec![0; self.context];
        let mut targets = vec![IGNORE_INDEX; self.context];
        self.tokens.copy(self.start, &mut ids[..end - self.start]);
        self.tokens.copy_targets(self.counted + 1, &mut targets[self.counted - self.start..end - self.start]);
        self.counted = end;
        self.start += self.stride;
        Some(Row { ids, targets, starts: None, answers: vec![] })
    }

    fn left(&self) -> usize {
        let inputs = self.tokens.len() - 1;
        match inputs - self.counted {
            0 => 0,
            _ => 1 + inputs.saturating_sub(self.start + self.context).div_ceil(self.stride),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tokens 100, 101, ...: each value says where it stands.
    fn tokens(count: u32) -> Tokens {
        (100..100 + count).collect::<Vec<u32>>().into()
    }

    #[test]
    fn evaluation_counts_each_target_once() {
        for (count, context, stride) in [(2, 8, 8), (9, 8, 8), (10, 8, 8), (40, 8, 3), (41, 8, 1), (50, 8, 5)] {
            let tokens = tokens(count);
            let windows = eval_windows(&tokens, context, stride).unwrap();
            let announced = windows.len();
            let windows: Vec<_> = windows.collect();
            assert_eq!(windows.len(), announced, "{count} tokens");
            let pairs: Vec<(u32, u32)> = windows
                .into_iter()
                .flat_map(|Row { ids, targets, .. }| {
                    assert_eq!((ids.len(), targets.len()), (context, context));
                    ids.into_iter().zip(targets).filter(|(_, target)| *target != IGNORE_INDEX).collect::<Vec<_>>()
                })
                .collect();
            let expected: Vec<(u32, u32)> = (100..100 + count - 1).map(|t| (t, t + 1)).collect();
            assert_eq!(pairs, expected, "{count} tokens, context {context}, stride {stride}");
        }
    }

    #[test]
    fn evaluation_with_a_stride_gives_context_to_every_later_target() {
        let tokens = tokens(30);
        for Row { ids, targets, .. } in eval_windows(&tokens, 8, 3).unwrap().skip(1) {
            assert_eq!(targets[..5], [IGNORE_INDEX; 5]);
            assert!(ids[..5].iter().all(|&id| id >= 100));
        }
    }

    #[test]
    fn fewer_than_two_tokens_are_refused() {
        for count in [0, 1] {
            let error = eval_windows(&tokens(count), 8, 8).err().unwrap().to_string();
            assert!(error.contains("at least 2"), "{error}");
        }
    }

    #[test]
    fn a_stride_outside_the_context_is_refused() {
        assert!(eval_windows(&tokens(30), 8, 0).is_err());
        assert!(eval_windows(&tokens(30), 8, 9).is_err());
    }
}
