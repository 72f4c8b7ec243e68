# A Ruby application that pushes jobs.
#
#   ruby sidekiq_push.rb PORT QUEUE NAMESPACE
#
# Reads lines with a number, pushes as many jobs of the class Work, and answers with their ids as a JSON array.

require "json"
require "sidekiq"

port, queue, namespace = ARGV
Sidekiq.configure_client { |config| config.redis = { url: "redis://127.0.0.1:#{port}/0", namespace: namespace } }

class Work
  include Sidekiq::Worker
end

$stdout.sync = true
while (line = $stdin.gets)
  puts JSON.generate(line.to_i.times.map { Work.set(queue: queue).perform_async })
end
