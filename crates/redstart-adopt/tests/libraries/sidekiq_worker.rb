# A Sidekiq process as the other side of a test; it notes what it ran in the list "ran:<queue>".
#
#   ruby sidekiq_worker.rb PORT QUEUE

require "sidekiq"
require "sidekiq/cli"

PORT, QUEUE = ARGV[0], ARGV[1]
Sidekiq.configure_server do |config|
  config.redis = { url: "redis://127.0.0.1:#{PORT}/0" }
  config.logger.level = Logger::FATAL
  config.options[:poll_interval_average] = 1
end

class Charge
  include Sidekiq::Worker

  def perform(order, currency)
    Sidekiq.redis { |redis| redis.rpush("ran:#{QUEUE}", "#{order} #{currency}") }
  end
end

cli = Sidekiq::CLI.instance
cli.parse(["-q", QUEUE, "-c", "2", "-r", File.expand_path(__FILE__)]) unless $redstart_started
unless $redstart_started
  $redstart_started = true
  cli.run
end
