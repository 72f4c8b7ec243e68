# Sidekiq at work: jobs that are done at once, a second later, or not at the first attempt.
#
#   ruby sidekiq_busy.rb PORT work    a process, as long as it lives
#   ruby sidekiq_busy.rb PORT send    the client, as long as it lives; prints "busy" when jobs flow

require "sidekiq"
require "sidekiq/api"

class Charge
  include Sidekiq::Worker

  def perform(order)
    raise "no luck" if order % 50 == 7
  end
end

url = "redis://127.0.0.1:#{ARGV[0]}/0"

# The process loads this file again, for the job.
if defined?(STARTED)
  nil
elsif ARGV[1] == "send"
  STARTED = true
  Sidekiq.configure_client { |config| config.redis = { url: url } }
  busy = false
  (0..).each do |order|
    Charge.perform_async(order)
    Charge.perform_in(1, order) if order % 10 == 0
    # Some jobs wait at any time, and not ever more of them.
    sleep 0.005 while Sidekiq::Queue.new("default").size > 20
    unless busy || Sidekiq::Stats.new.processed < 50
      puts "busy"
      $stdout.flush
      busy = true
    end
  end
else
  STARTED = true
  require "sidekiq/cli"
  Sidekiq.configure_server do |config|
    config.redis = { url: url }
    config.logger.level = Logger::FATAL
    config.options[:poll_interval_average] = 1
  end
  cli = Sidekiq::CLI.instance
  cli.parse(["-q", "default", "-c", "2", "-r", File.expand_path(__FILE__)])
  cli.run
end
