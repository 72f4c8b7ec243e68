# A Sidekiq process that has a job in hand for as long as it lives.
#
#   ruby sidekiq_sleeper.rb PORT

require "sidekiq"
require "sidekiq/cli"

class Sleeper
  include Sidekiq::Worker

  def perform
    sleep 600
  end
end

# The process loads this file again, for the job.
unless defined?(STARTED)
  STARTED = true
  Sidekiq.configure_server do |config|
    config.redis = { url: "redis://127.0.0.1:#{ARGV[0]}/0" }
    config.logger.level = Logger::FATAL
  end
  Sleeper.perform_async
  cli = Sidekiq::CLI.instance
  cli.parse(["-q", "default", "-c", "2", "-r", __FILE__])
  cli.run
end
