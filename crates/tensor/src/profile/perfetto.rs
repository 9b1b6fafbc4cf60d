//! The messages of Perfetto's traces that [`Trace`](super::Trace) writes, with the fields that are used.
//!
//! Format: <https://perfetto.dev/docs/reference/trace-packet-proto>

// TrackEvent.Type
pub const SLICE_BEGIN: u32 = 1;
pub const SLICE_END: u32 = 2;
pub const INSTANT: u32 = 3;

// TracePacket.SequenceFlags
pub const INCREMENTAL_STATE_CLEARED: u32 = 1;
pub const NEEDS_INCREMENTAL_STATE: u32 = 2;

/// TrackDescriptor.ChildTracksOrdering: by the rank of each track.
pub const EXPLICIT: u32 = 3;

/// A trace of one packet; concatenated traces form one trace.
#[derive(prost::Message)]
pub struct OnePacket {
    #[prost(message, optional, tag = "1")]
    pub packet: Option<TracePacket>,
}

#[derive(prost::Message)]
pub struct TracePacket {
    #[prost(uint64, optional, tag = "8")]
    pub timestamp: Option<u64>,
    #[prost(uint32, tag = "10")]
    pub trusted_packet_sequence_id: u32,
    #[prost(message, optional, tag = "11")]
    pub track_event: Option<TrackEvent>,
    #[prost(message, optional, tag = "12")]
    pub interned_data: Option<InternedData>,
    #[prost(uint32, tag = "13")]
    pub sequence_flags: u32,
    #[prost(message, optional, tag = "60")]
    pub track_descriptor: Option<TrackDescriptor>,
}

#[derive(prost::Message)]
pub struct TrackEvent {
    #[prost(message, optional, tag = "4")]
    pub debug_annotation: Option<DebugAnnotation>,
    #[prost(uint32, tag = "9")]
    pub kind: u32,
    #[prost(uint64, tag = "10")]
    pub name_iid: u64,
    #[prost(uint64, tag = "11")]
    pub track_uuid: u64,
}

#[derive(prost::Message)]
pub struct DebugAnnotation {
    #[prost(uint64, optional, tag = "3")]
    pub uint_value: Option<u64>,
    #[prost(string, tag = "10")]
    pub name: String,
}

#[derive(prost::Message)]
pub struct InternedData {
    #[prost(message, optional, tag = "2")]
    pub event_name: Option<EventName>,
}

#[derive(prost::Message)]
pub struct EventName {
    #[prost(uint64, tag = "1")]
    pub iid: u64,
    #[prost(string, tag = "2")]
    pub name: String,
}

#[derive(prost::Message)]
pub struct TrackDescriptor {
    #[prost(uint64, tag = "1")]
    pub uuid: u64,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(message, optional, tag = "3")]
    pub process: Option<ProcessDescriptor>,
    #[prost(uint64, tag = "5")]
    pub parent_uuid: u64,
    #[prost(uint32, tag = "11")]
    pub child_ordering: u32,
    #[prost(uint64, tag = "12")]
    pub sibling_order_rank: u64,
}

#[derive(prost::Message)]
pub struct ProcessDescriptor {
    #[prost(uint64, tag = "1")]
    pub pid: u64,
    #[prost(string, tag = "6")]
    pub process_name: String,
}
