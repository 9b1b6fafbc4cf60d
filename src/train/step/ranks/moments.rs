//! Gathers the moments of other ranks on rank 0: those of their parts of the parameters (`train.shard_optimizer`), with
//! sharded weights; or those of their local steps (`train.sync_every`).

use crate::comm::Background;
use crate::optim::Moment;
use crate::tensor::Bytes;
use crate::train::step::replica::Replica;
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Header of a moment, followed by its bytes.
#[derive(Serialize, Deserialize)]
struct Header {
    name: String,
    range: Range<usize>,
    bytes: usize,
}

/// Sends this rank's saved moments to rank 0, and the weights that it has alone.
pub(super) fn send(comm: &Background, replica: &Replica) -> Result<()> {
    let Replica { parameters, optimizer, .. } = replica;
    let (mut headers, mut all) = (Vec::new(), Vec::new());
    let values = parameters.divided_values(optimizer.part())?;
    let trained = Moment { range: optimizer.part().clone(), ..Moment::trained(parameters) };
    let own = values.iter().map(|values| (trained.clone(), values));
    for (Moment { name, range, .. }, tensor) in replica.saved_moments().unwrap_or_default().into_iter().chain(own) {
        let bytes = tensor.to_bytes()?;
        headers.push(Header { name: name.into(), range, bytes: bytes.len() });
        all.extend(bytes);
    }
    comm.gather(serde_json::to_vec(&headers).expect("plain values"))?;
    comm.gather(all)?;
    Ok(())
}

/// Receives the moments of the other ranks on rank 0. If they are shards (`are_parts`), all share rank 0's loss scale.
pub(super) fn receive(comm: &Background, are_parts: bool) -> Result<Vec<(Moment, Bytes)>> {
    let headers = comm.gather(Vec::new())?;
    let bytes = comm.gather(Vec::new())?;
    let mut moments = Vec::new();
    for (rank, (headers, bytes)) in headers.iter().zip(&bytes).enumerate().skip(1) {
        let wrong = || Error::Communication(format!("rank {rank} sent malformed optimizer moments"));
        let headers: Vec<Header> = serde_json::from_slice(headers).map_err(|_| wrong())?;
        let mut rest = &bytes[..];
        for Header { name, range, bytes } in headers {
            let own;
            (own, rest) = rest.split_at_checked(bytes).ok_or_else(wrong)?;
            let owner = if are_parts { 0 } else { rank };
            let moment = Moment::named(&name, range, owner).ok_or_else(wrong)?;
            if !(are_parts && moment.is_global()) {
                moments.push((moment, Bytes::owned(own.to_vec())));
            }
        }
    }
    Ok(moments)
}
