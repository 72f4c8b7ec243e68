# A Sidekiq process as the other side of a test.
#
#   ruby sidekiq_worker.rb PORT QUEUE [NAMESPACE [CONCURRENCY [hold]]]
#
# With a namespace it runs one job at a time, unless it is told otherwise. With "hold" it ends ten jobs of the class Work and keeps the others.

require "sidekiq"
require "sidekiq/cli"

port, queue, namespace, concurrency = ARGV
Sidekiq.configure_server do |config|
  config.redis = { url: "redis://127.0.0.1:#{port}/0", namespace: namespace }.compact
  config.logger.level = Logger::FATAL
  config.options[:poll_interval_average] = 1
end

cli = Sidekiq::CLI.instance
cli.parse(["-q", queue, "-c", concurrency || (namespace ? "1" : "2"), "-r", File.join(__dir__, "sidekiq_job.rb")])
cli.run
