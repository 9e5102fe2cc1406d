//! Identity and size of topics, by librdkafka's DescribeTopics, which the safe wrapper lacks.
//!
//! This is the only unsafe code of the crate. Every pointer that librdkafka gives is looked at while the event that it belongs
//! to is alive, and every object that is made here is destroyed here, once, by [`Owned`].
#![allow(unsafe_code)]

use super::{Options, TopicId, TransportError};
use rdkafka::bindings as c;
use rdkafka::client::{Client, ClientContext};
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode;
use std::ffi::{CString, c_char};

/// What a topic is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Described {
    pub(super) id: TopicId,
    pub(super) partitions: u32,
}

/// A pointer with what destroys it.
struct Owned<T>(*mut T, unsafe extern "C" fn(*mut T));

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: made by librdkafka for us, not destroyed by anyone else, and this runs once.
            unsafe { (self.1)(self.0) }
        }
    }
}

/// Topics in order of `names`. Errors: `NoTopic` where one is not there.
pub(super) fn topics<C: ClientContext>(
    client: &Client<C>,
    options: &Options,
    names: &[&'static str],
) -> Result<Vec<Described>, TransportError> {
    let failed = |code: c::rd_kafka_resp_err_t| {
        let code: RDKafkaErrorCode = code.into();
        options.properties.failed("describe topics", KafkaError::AdminOp(code))
    };
    let late = || options.properties.late("describe topics", options.timeout);
    let owned: Vec<CString> = names.iter().filter_map(|name| CString::new(*name).ok()).collect();
    let mut pointers: Vec<*const c_char> = owned.iter().map(|name| name.as_ptr()).collect();
    let millis = i32::try_from(options.timeout.as_millis()).unwrap_or(i32::MAX);
    let rk = client.native_ptr();
    // SAFETY: `rk` lives as long as `client`; `pointers` and the strings behind them outlive the call, which copies them; null
    // results are looked at before use; the event, and with it all that is read from it, lives until the end of this block.
    unsafe {
        let collection = Owned(
            c::rd_kafka_TopicCollection_of_topic_names(pointers.as_mut_ptr(), pointers.len()),
            c::rd_kafka_TopicCollection_destroy,
        );
        let queue = Owned(c::rd_kafka_queue_new(rk), c::rd_kafka_queue_destroy);
        let wanted = Owned(
            c::rd_kafka_AdminOptions_new(rk, c::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS),
            c::rd_kafka_AdminOptions_destroy,
        );
        if collection.0.is_null() || queue.0.is_null() || wanted.0.is_null() {
            return Err(late());
        }
        let mut words = [0 as c_char; 256];
        let set = c::rd_kafka_AdminOptions_set_request_timeout(wanted.0, millis, words.as_mut_ptr(), words.len());
        if set != c::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR {
            return Err(failed(set));
        }
        c::rd_kafka_DescribeTopics(rk, collection.0, wanted.0, queue.0);
        // The request ends by its own timeout; a little longer, so that its own error is what is told.
        let event = Owned(c::rd_kafka_queue_poll(queue.0, millis.saturating_add(2000)), c::rd_kafka_event_destroy);
        if event.0.is_null() {
            return Err(late());
        }
        let code = c::rd_kafka_event_error(event.0);
        if code != c::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR {
            return Err(failed(code));
        }
        let result = c::rd_kafka_event_DescribeTopics_result(event.0);
        if result.is_null() {
            return Err(late());
        }
        let mut count = 0;
        let array = c::rd_kafka_DescribeTopics_result_topics(result, &mut count);
        if array.is_null() || count != names.len() {
            return Err(late());
        }
        let mut out = Vec::with_capacity(count);
        for (place, name) in names.iter().enumerate() {
            let topic = *array.add(place);
            let error = c::rd_kafka_TopicDescription_error(topic);
            if !error.is_null() {
                let code = c::rd_kafka_error_code(error);
                if matches!(
                    code,
                    c::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART
                        | c::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_ID
                ) {
                    let at = options.properties.brokers().into();
                    return Err(TransportError::NoTopic { topic: (*name).to_owned(), path: at });
                }
                if code != c::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR {
                    return Err(failed(code));
                }
            }
            let uuid = c::rd_kafka_TopicDescription_topic_id(topic);
            let (mut high, mut low) = (0, 0);
            if !uuid.is_null() {
                high = c::rd_kafka_Uuid_most_significant_bits(uuid);
                low = c::rd_kafka_Uuid_least_significant_bits(uuid);
            }
            let id = TopicId::parse(&format!("{high:016x}{low:016x}")).ok().filter(|_| (high, low) != (0, 0));
            let Some(id) = id else { return Err(TransportError::NoTopicId { topic: (*name).to_owned() }) };
            let mut partitions = 0;
            c::rd_kafka_TopicDescription_partitions(topic, &mut partitions);
            out.push(Described { id, partitions: u32::try_from(partitions).unwrap_or(u32::MAX) });
        }
        Ok(out)
    }
}
