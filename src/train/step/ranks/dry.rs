//! The synchronization of ranks on a device of no values, as far as it takes memory and launches kernels.

use super::card_sync::CardSync;
use super::exchange_buffers::ExchangeBuffers;
use super::{TokenRows, cards, exchanged_dtype};
use crate::config::Config;
use crate::models::LanguageModel;
use crate::optim::{Optimizer, ParameterArena};
use crate::step::GradientSync;
use crate::{Device, Result, Tensor};

/// A rank of several on a device of no values.
pub(in crate::train) enum DryRanks {
    /// Gradients go through the host, those of some token embeddings apart.
    Host(Option<TokenRows>),
    /// Cards exchange them by windows, which are only held.
    Cards { _windows: [Tensor; 2] },
}

impl DryRanks {
    /// Of a run of so many ranks whose device is like `real`, with this model on a device of no values.
    ///
    /// # Errors
    /// If the windows are larger than a buffer of the device.
    pub fn new(
        config: &Config,
        (model, parameters): (&dyn LanguageModel, &ParameterArena),
        ranks: usize,
        real: &Device,
    ) -> Result<DryRanks> {
        if !cards::are_expected(config, real) {
            return Ok(DryRanks::Host(TokenRows::of(config, model, parameters)));
        }
        let device = parameters.values().device();
        let capacity = ExchangeBuffers::capacity(CardSync::bytes(parameters, exchanged_dtype(config)), ranks);
        Ok(DryRanks::Cards { _windows: [device.window(capacity)?, device.window(capacity * ranks)?] })
    }

    fn rows(&mut self) -> Option<&mut TokenRows> {
        match self {
            DryRanks::Host(rows) => rows.as_mut(),
            DryRanks::Cards { .. } => None,
        }
    }
}

impl GradientSync for DryRanks {
    fn begin(&mut self, _: &[&[u32]]) -> Result<()> {
        self.rows().map_or(Ok(()), TokenRows::begin_dry)
    }

    fn last_backward(&mut self, _: &ParameterArena, backward: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        backward()
    }

    fn synchronize(&mut self, _: &ParameterArena, loss: Tensor) -> Result<Option<Tensor>> {
        let rows = self.rows().map_or(Ok(None), TokenRows::end)?;
        rows.map_or(Ok(()), |rows| rows.add())?;
        Ok(Some(loss))
    }

    fn vote(&mut self) -> Result<bool> {
        Ok(true)
    }

    fn abort(&mut self) -> Result<()> {
        self.rows().into_iter().for_each(TokenRows::abort);
        Ok(())
    }

    fn gather(&mut self, _: &ParameterArena, _: &Optimizer) -> Result<()> {
        Ok(())
    }
}
