import java.io.*;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.*;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.MapFunction;
import org.apache.flink.api.common.typeinfo.*;
import org.apache.flink.api.connector.sink2.*;
import org.apache.flink.api.java.tuple.*;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.file.src.FileSource;
import org.apache.flink.connector.file.src.reader.*;
import org.apache.flink.core.fs.*;
import org.apache.flink.streaming.api.datastream.*;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.windowing.ProcessWindowFunction;
import org.apache.flink.streaming.api.windowing.assigners.*;
import org.apache.flink.streaming.api.windowing.triggers.*;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.apache.flink.util.Collector;
import org.apache.flink.util.ParameterTool;

/**
 * Patterns over card transactions, a window operator for each; shared.py says what they are. The set-up is that of Race.
 * Prints RESULT, events, nanoseconds, rows.
 */
public final class Patterns {
    static final int TEXT_BYTES = 266;
    static final int RECORD_BYTES = 24 + TEXT_BYTES;

    static volatile long lastNanos;

    public static void main(String[] arguments) throws Exception {
        ParameterTool options = ParameterTool.fromArgs(arguments);
        File[] files = new File(options.getRequired("data")).listFiles((directory, name) -> name.endsWith(".bin"));
        long events = Arrays.stream(files).mapToLong(File::length).sum() / RECORD_BYTES;
        Race.warmUpEvents = events / 4;
        long until = options.getLong("until");

        Path[] paths = Arrays.stream(files).map(Path::fromLocalFile).toArray(Path[]::new);
        FileSource<Tuple4<Long, Long, Double, String>> source =
                FileSource.forRecordStreamFormat(new Transactions(), paths).setSplitAssigner(Race::inOrder).build();
        WatermarkStrategy<Tuple4<Long, Long, Double, String>> watermarks =
                WatermarkStrategy.<Tuple4<Long, Long, Double, String>>forBoundedOutOfOrderness(Duration.ofMinutes(1))
                        .withTimestampAssigner((transaction, previous) -> transaction.f0);
        KeyedStream<Tuple3<Long, Double, String>, Long> byCard =
                StreamExecutionEnvironment.createLocalEnvironment(Race.PARALLELISM, Race.settings(options))
                        .fromSource(source, watermarks, "transactions")
                        .map(new Emit())
                        .keyBy(transaction -> transaction.f0, Types.LONG);
        for (String pattern : options.getRequired("patterns").split(",")) {
            byCard.window(windows(pattern)).trigger(new Until(until)).process(new Aggregates()).sinkTo(new Counted());
        }
        byCard.getExecutionEnvironment().execute("patterns");
        long timed = events - Race.timedFromEvents;
        System.out.println("RESULT " + timed + " " + (lastNanos - Race.timedFromNanos) + " " + Race.ROWS.get());
    }

    /** Minutes, of a window and its slide, or of the gap of a session. */
    static WindowAssigner<Object, TimeWindow> windows(String pattern) {
        String[] minutes = pattern.split("/");
        Duration size = Duration.ofMinutes(Long.parseLong(minutes[0]));
        return minutes.length == 1
                ? EventTimeSessionWindows.withGap(size)
                : SlidingEventTimeWindows.of(size, Duration.ofMinutes(Long.parseLong(minutes[1])));
    }

    /** Records of time in milliseconds, card, amount, text. */
    static final class Transactions extends SimpleStreamFormat<Tuple4<Long, Long, Double, String>> {
        @Override
        public TypeInformation<Tuple4<Long, Long, Double, String>> getProducedType() {
            return Types.TUPLE(Types.LONG, Types.LONG, Types.DOUBLE, Types.STRING);
        }

        @Override
        public Reader<Tuple4<Long, Long, Double, String>> createReader(Configuration settings, FSDataInputStream stream) {
            return new Race.Records<>(stream, RECORD_BYTES) {
                @Override
                Tuple4<Long, Long, Double, String> record(ByteBuffer buffer, int at) {
                    String text = new String(buffer.array(), at + 24, TEXT_BYTES, StandardCharsets.ISO_8859_1);
                    return Tuple4.of(buffer.getLong(at), buffer.getLong(at + 8), buffer.getDouble(at + 16), text);
                }
            };
        }
    }

    /** Drops the time, which Flink keeps beside the record from here on. */
    static final class Emit implements MapFunction<Tuple4<Long, Long, Double, String>, Tuple3<Long, Double, String>> {
        private final Race.Warmup warmup = new Race.Warmup(64);

        @Override
        public Tuple3<Long, Double, String> map(Tuple4<Long, Long, Double, String> record) {
            warmup.emitted();
            return Tuple3.of(record.f1, record.f2, record.f3);
        }
    }

    /** The median of the amounts, and the number of different texts. */
    static final class Aggregates
            extends ProcessWindowFunction<
                    Tuple3<Long, Double, String>, Tuple3<Long, Double, Integer>, Long, TimeWindow> {
        @Override
        public void process(
                Long card,
                Context context,
                Iterable<Tuple3<Long, Double, String>> transactions,
                Collector<Tuple3<Long, Double, Integer>> out) {
            double[] amounts = new double[16];
            Set<String> texts = new HashSet<>();
            int n = 0;
            for (Tuple3<Long, Double, String> transaction : transactions) {
                if (n == amounts.length) {
                    amounts = Arrays.copyOf(amounts, 2 * n);
                }
                amounts[n++] = transaction.f1;
                texts.add(transaction.f2);
            }
            Arrays.sort(amounts, 0, n);
            out.collect(Tuple3.of(card, (amounts[(n - 1) / 2] + amounts[n / 2]) / 2.0, texts.size()));
            lastNanos = System.nanoTime();
        }
    }

    /** At the end of the input Flink's watermark goes to the end of time; windows that end later than this stay closed. */
    static final class Until extends Trigger<Object, TimeWindow> {
        private final long until;

        Until(long until) {
            this.until = until;
        }

        @Override
        public TriggerResult onElement(Object element, long time, TimeWindow window, TriggerContext context) {
            lastNanos = System.nanoTime();
            if (window.maxTimestamp() <= context.getCurrentWatermark()) {
                return TriggerResult.FIRE;
            }
            context.registerEventTimeTimer(window.maxTimestamp());
            return TriggerResult.CONTINUE;
        }

        @Override
        public TriggerResult onEventTime(long time, TimeWindow window, TriggerContext context) {
            boolean due = time == window.maxTimestamp() && window.getEnd() <= until;
            return due ? TriggerResult.FIRE : TriggerResult.CONTINUE;
        }

        @Override
        public TriggerResult onProcessingTime(long time, TimeWindow window, TriggerContext context) {
            return TriggerResult.CONTINUE;
        }

        @Override
        public void clear(TimeWindow window, TriggerContext context) {
            context.deleteEventTimeTimer(window.maxTimestamp());
        }

        @Override
        public boolean canMerge() {
            return true;
        }

        @Override
        public void onMerge(TimeWindow window, OnMergeContext context) {
            if (window.maxTimestamp() > context.getCurrentWatermark()) {
                context.registerEventTimeTimer(window.maxTimestamp());
            }
        }
    }

    /** Counts the results. */
    static final class Counted implements Sink<Tuple3<Long, Double, Integer>> {
        @Override
        public SinkWriter<Tuple3<Long, Double, Integer>> createWriter(WriterInitContext context) {
            return new SinkWriter<>() {
                public void write(Tuple3<Long, Double, Integer> row, Context context) {
                    Race.ROWS.incrementAndGet();
                }

                public void flush(boolean endOfInput) {}

                public void close() {}
            };
        }
    }
}
