//! Sums the gradients of all ranks by exchanges between their devices, after backward: all gradients of a step take
//! less time on the cards' links than the interruptions of backward would.
//!
//! Gradients are copied to the rank's window, in f16 if `train.reduce_dtype` says so; each device then has those of all
//! ranks and adds them in f32, in the order of the ranks, so that all have the same bits in every run.
//!
//! An attempt at an update is the same calls on all ranks, whatever becomes of it:
//!
//! ```text
//! exchanges of gradients, in their order, the first with the loss | vote
//! ```

use super::ballot::Ballot;
use super::exchange_buffers::{ExchangeBuffers, Offset};
use crate::optim::{Optimizer, ParameterArena};
use crate::profile::MemoryKind;
use crate::step::GradientSync;
use crate::{DType, Error, Result, Tensor};
use std::ops::Range;

/// The gradients of one rank of several.
pub(super) struct CardSync {
    ballot: Ballot,
    windows: ExchangeBuffers,
    /// The type in which gradients are exchanged.
    dtype: DType,
    rounds: Vec<Round>,
    /// Exchanges of this attempt that are done.
    done: usize,
}

/// The first bytes of a window, for the loss of the step, f32.
const LOSS_BYTES: usize = 256;

/// What goes in one exchange: parts of the arena of gradients, with their places in the window.
struct Round {
    pieces: Vec<(Range<usize>, Offset)>,
    bytes: usize,
}

impl CardSync {
    /// What a rank gives in a step.
    pub fn bytes(parameters: &ParameterArena, dtype: DType) -> usize {
        LOSS_BYTES + parameters.trainable_len() * dtype.size_bytes()
    }

    /// # Errors
    /// If a rank failed, or ranks cut the gradients differently, as cards with other limits do.
    pub fn new(
        ballot: Ballot,
        windows: ExchangeBuffers,
        dtype: DType,
        parameters: &ParameterArena,
    ) -> Result<CardSync> {
        let all = parameters.in_buffers(&(0..parameters.trainable_len()), windows.most_elements());
        let mut rounds = Vec::new();
        let mut rest = &all[..];
        while !rest.is_empty() {
            let sizes = rest.iter().map(|range| range.len() * dtype.size_bytes());
            let (mut places, bytes) = windows.place(std::iter::once(LOSS_BYTES).chain(sizes));
            places.remove(0);
            let (now, later) = rest.split_at(places.len());
            rounds.push(Round { pieces: now.iter().cloned().zip(places).collect(), bytes });
            rest = later;
        }
        let own: Vec<u64> = rounds.iter().map(|round: &Round| round.bytes as u64).collect();
        let all = ballot.comm.all_gather(bytemuck::cast_slice(&own).into())?;
        if let Some(rank) = all.iter().position(|theirs| bytemuck::pod_collect_to_vec::<u8, u64>(theirs) != own) {
            return Err(Error::Invalid(format!(
                "rank {rank} has a card of other limits than rank {}: set train.comm = \"host\"",
                ballot.comm.rank()
            )));
        }
        Ok(CardSync { ballot, windows, dtype, rounds, done: 0 })
    }

    /// Replaces the next gradients by their sums, and the loss by its own, `sum`.
    fn sum_round(&mut self, arena: &Tensor, loss: &Tensor, sum: &Tensor) -> Result<()> {
        let Round { pieces, bytes } = &self.rounds[self.done];
        let gradient = |range: &Range<usize>| arena.slice_flat(range.start, [range.len()].into());
        loss.cast_into(&self.windows.own(0, 1, DType::F32))?;
        for (range, offset) in pieces {
            gradient(range).cast_into(&self.windows.own(*offset, range.len(), self.dtype))?;
        }
        self.windows.exchange(&self.ballot, *bytes)?;
        self.done += 1;
        let (windows, ranks) = (&self.windows, self.ballot.comm.size());
        let given = |offset, len, dtype| -> Vec<Tensor> {
            (0..ranks).map(|rank| windows.of(rank, *bytes, offset, len, dtype)).collect()
        };
        sum.set_to_sum(&given(0, 1, DType::F32))?;
        pieces
            .iter()
            .try_for_each(|(range, offset)| gradient(range).set_to_sum(&given(*offset, range.len(), self.dtype)))
    }

    /// Gives this rank's part of the parameters to the others, and takes theirs.
    fn gather_parts(&self, parameters: &ParameterArena, parts: &[Range<usize>]) -> Result<()> {
        let most = self.windows.most_elements();
        let pieces = parts.iter().map(|part| parameters.exchanged(part, most));
        let pieces = pieces.collect::<Result<Vec<Vec<Tensor>>>>()?;
        let mut rest: Vec<&[Tensor]> = pieces.iter().map(Vec::as_slice).collect();
        while rest.iter().any(|rest| !rest.is_empty()) {
            let placed = rest.iter().map(|rest| self.windows.place(rest.iter().map(|piece| piece.spec().size_bytes())));
            let placed: Vec<(Vec<Offset>, usize)> = placed.collect();
            // As much of all, though some have less to give.
            let bytes = placed.iter().map(|(_, bytes)| *bytes).max().unwrap_or_default();
            let rank = self.ballot.comm.rank();
            for (piece, offset) in rest[rank].iter().zip(&placed[rank].0) {
                piece.cast_into(&self.windows.own(*offset, piece.len(), piece.dtype()))?;
            }
            self.windows.exchange(&self.ballot, bytes)?;
            for (of, (places, _)) in placed.into_iter().enumerate() {
                let (now, later) = rest[of].split_at(places.len());
                rest[of] = later;
                for (piece, offset) in now.iter().zip(places).filter(|_| of != rank) {
                    self.windows.of(of, bytes, offset, piece.len(), piece.dtype()).cast_into(piece)?;
                }
            }
        }
        Ok(())
    }
}

impl GradientSync for CardSync {
    fn begin(&mut self, _: &[&[u32]]) -> Result<()> {
        self.done = 0;
        Ok(())
    }

    fn last_backward(&mut self, _: &ParameterArena, backward: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        backward()
    }

    fn synchronize(&mut self, parameters: &ParameterArena, loss: Tensor) -> Result<Option<Tensor>> {
        let arena = parameters.gradients()?;
        let sum = Tensor::empty(loss.spec().clone(), &loss.device(), MemoryKind::Other)?;
        while self.done < self.rounds.len() {
            self.sum_round(arena, &loss, &sum)?;
        }
        // The device adds while the host goes on.
        loss.device().submit()?;
        Ok(Some(sum))
    }

    fn vote(&mut self) -> Result<bool> {
        self.ballot.vote(false)
    }

    fn abort(&mut self) -> Result<()> {
        // Nobody uses the sums, but what is between parameters must stay zero: it counts in the norm of the gradients.
        self.windows.clear();
        let missing = &self.rounds[self.done..];
        missing.iter().try_for_each(|round| self.windows.exchange(&self.ballot, round.bytes))?;
        self.ballot.vote(true).map(drop)
    }

    fn gather(&mut self, parameters: &ParameterArena, optimizer: &Optimizer) -> Result<()> {
        let parts = self.ballot.parts(optimizer.part(), parameters.trainable_len())?.to_vec();
        if parts.is_empty() {
            return Ok(());
        }
        self.gather_parts(parameters, &parts)?;
        parameters.refresh_halves()
    }
}
