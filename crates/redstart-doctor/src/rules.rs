//! The rules, one file each: documentation, query and tests.
//!
//! A rule reads [`Observations`](crate::observation::Observations) and nothing else. To add one, write its file and
//! list it here.

use crate::rule::Rule;

mod big_key;
mod bullmq;
mod bullmq_active_without_lock;
mod bullmq_completed_unbounded;
mod bullmq_eviction;
mod bullmq_missing_jobs;
mod bullmq_mixed_versions;
mod bullmq_orphan_jobs;
mod bullmq_paused_and_waiting;
mod cache_fill_race;
mod cache_stampede;
mod cache_updated_in_place;
mod cache_without_ttl;
mod celery_eta_beyond_visibility;
mod celery_unacked;
mod check_then_increment;
mod clients_without_names;
mod connection_leak;
mod coordinates_in_strings;
mod counter_drained;
mod counter_without_ttl;
mod crossslot_errors;
mod dangerous_commands_open;
#[cfg(test)]
mod deployment;
mod eviction_with_durable_data;
mod flush_command;
mod hot_key;
mod hot_slot;
mod incr_then_expire;
mod keys_command;
mod latency_spikes;
mod lock_get_then_del;
mod lock_outlived;
mod lock_released_by_del;
mod lock_without_owner;
mod lock_without_ttl;
mod lost_update;
mod maxmemory_unset;
mod open_server;
mod out_of_memory_errors;
mod publish_to_nobody;
mod queue_loses_jobs;
mod queue_without_persistence;
mod rate_limiter_flexible_without_ttl;
mod redis_py_lock_without_ttl;
mod redstart_clocks;
mod redstart_queue_without_workers;
mod redstart_two_quotas;
mod redstart_two_ttls;
mod redstart_wedged_partition;
mod replica_lag_under_locks;
mod scores_in_strings;
mod script_interpolation;
mod session_rewritten_whole;
mod session_store_without_ttl;
mod session_without_sliding_expiry;
mod session_without_ttl;
mod set_for_counting;
mod setnx_then_expire;
mod sidekiq_dead_process;
mod sliding_window_charges_refusals;
mod sliding_window_untrimmed;
mod slow_script;
mod slow_subscriber;
mod sort_command;
mod stream_dead_consumer;
mod stream_no_dead_letters;
mod stream_pending_grows;
mod stream_trimmed_past_group;
mod stream_without_acks;
mod unbounded_growth;
mod whole_reads;
#[cfg(test)]
pub(crate) mod world;
mod write_behind_without_queue;

/// All rules, by family.
pub static RULES: &[Rule] = &[
    cache_without_ttl::RULE,
    cache_updated_in_place::RULE,
    cache_fill_race::RULE,
    cache_stampede::RULE,
    write_behind_without_queue::RULE,
    check_then_increment::RULE,
    lost_update::RULE,
    counter_without_ttl::RULE,
    incr_then_expire::RULE,
    sliding_window_untrimmed::RULE,
    sliding_window_charges_refusals::RULE,
    lock_without_ttl::RULE,
    lock_without_owner::RULE,
    lock_released_by_del::RULE,
    lock_get_then_del::RULE,
    lock_outlived::RULE,
    setnx_then_expire::RULE,
    session_without_ttl::RULE,
    session_rewritten_whole::RULE,
    session_without_sliding_expiry::RULE,
    queue_loses_jobs::RULE,
    stream_without_acks::RULE,
    stream_pending_grows::RULE,
    stream_dead_consumer::RULE,
    stream_trimmed_past_group::RULE,
    stream_no_dead_letters::RULE,
    scores_in_strings::RULE,
    coordinates_in_strings::RULE,
    set_for_counting::RULE,
    publish_to_nobody::RULE,
    slow_subscriber::RULE,
    unbounded_growth::RULE,
    counter_drained::RULE,
    keys_command::RULE,
    flush_command::RULE,
    sort_command::RULE,
    whole_reads::RULE,
    big_key::RULE,
    hot_key::RULE,
    eviction_with_durable_data::RULE,
    queue_without_persistence::RULE,
    hot_slot::RULE,
    crossslot_errors::RULE,
    out_of_memory_errors::RULE,
    replica_lag_under_locks::RULE,
    maxmemory_unset::RULE,
    clients_without_names::RULE,
    connection_leak::RULE,
    slow_script::RULE,
    latency_spikes::RULE,
    script_interpolation::RULE,
    open_server::RULE,
    dangerous_commands_open::RULE,
    bullmq_orphan_jobs::RULE,
    bullmq_missing_jobs::RULE,
    bullmq_active_without_lock::RULE,
    bullmq_paused_and_waiting::RULE,
    bullmq_mixed_versions::RULE,
    bullmq_completed_unbounded::RULE,
    bullmq_eviction::RULE,
    sidekiq_dead_process::RULE,
    celery_unacked::RULE,
    celery_eta_beyond_visibility::RULE,
    rate_limiter_flexible_without_ttl::RULE,
    redis_py_lock_without_ttl::RULE,
    session_store_without_ttl::RULE,
    redstart_queue_without_workers::RULE,
    redstart_wedged_partition::RULE,
    redstart_two_quotas::RULE,
    redstart_two_ttls::RULE,
    redstart_clocks::RULE,
];

/// The rule of an id.
pub fn rule(id: &str) -> Option<&'static Rule> {
    RULES.iter().find(|rule| rule.id == id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_teaches_what_it_finds() {
        let mut ids = std::collections::HashSet::new();
        for rule in RULES {
            assert!(ids.insert(rule.id), "{} twice", rule.id);
            assert!(rule.timeline.len() >= 2, "{} has no time line", rule.id);
            for text in [rule.title, rule.about, rule.effect, rule.fix, rule.pattern] {
                assert!(!text.is_empty(), "{}", rule.id);
            }
            assert!(rule.about.ends_with('.'), "{}", rule.id);
        }
    }
}
