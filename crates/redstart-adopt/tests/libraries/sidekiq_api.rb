# What Sidekiq Web shows, from Sidekiq's own API.
#
#   ruby sidekiq_api.rb PORT NAMESPACE [retry-all]
#
# Prints one line of JSON. With retry-all, every retry and every dead job is put back into its queue first, as the buttons of the page do.

require "json"
require "sidekiq"
require "sidekiq/api"

port, namespace, action = ARGV
Sidekiq.configure_client do |config|
  config.redis = { url: "redis://127.0.0.1:#{port}/0", namespace: namespace }
  config.logger.level = Logger::FATAL
end

def shown(jobs)
  jobs.map do |job|
    { class: job.klass, jid: job.jid, queue: job.queue, args: job.args, at: job.at.to_f, error: job["error_class"],
      message: job["error_message"], count: job["retry_count"], failed_at: job["failed_at"], retried_at: job["retried_at"] }
  end
end

sets = [Sidekiq::RetrySet.new, Sidekiq::DeadSet.new]
sets.each { |set| set.to_a.each(&:retry) } if action == "retry-all"
stats = Sidekiq::Stats.new
puts JSON.generate(
  retries: shown(sets[0]), dead: shown(sets[1]), processed: stats.processed, failed: stats.failed,
  processes: Sidekiq::ProcessSet.new.map { |process| { identity: process["identity"], queues: process["queues"], tag: process.tag } },
)
